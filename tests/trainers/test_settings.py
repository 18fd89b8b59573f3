"""Settings that are tables, names or objects; what each combination promises, and what is refused."""

from __future__ import annotations

import dataclasses
import pickle
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from dpaudit.accounting import Claim
from dpaudit.errors import InputError
from dpaudit.spec import load_spec
from dpaudit.trainers import DPSGD, SGD
from dpaudit.trainers.images import Convolution, ConvolutionalNet
from dpaudit.trainers.private import Adam, AutomaticClipping, GlobalClipping, Momentum, PerLayerClipping, Sgd

ROOT = Path(__file__).parents[2]
NET = ConvolutionalNet((8, 8, 1), [Convolution(3, 3, padding=1, pool=2, pool_stride=2), Convolution(4, 3)])
NET_TABLE = {
    "shape": [8, 8, 1],
    "layers": [{"channels": 3, "kernel": 3, "padding": 1, "pool": 2, "pool_stride": 2}, {"channels": 4, "kernel": 3}],
}


def factory(features, classes, generator, width=4):
    from torch import nn

    return nn.Sequential(nn.Linear(features, width), nn.Tanh(), nn.Linear(width, classes))


# ---- what is kept ---------------------------------------------------------------------------------------------------


def test_what_was_there_before_looks_as_it_did():
    assert repr(DPSGD(hidden=[3])) == ("DPSGD(learning_rate=0.5, steps=300, sampling_rate=0.05, hidden=(3,), "
                                       "expected_batch_size=None, noise_multiplier=1.0, clip_norm=1.0)")  # fmt: skip
    assert repr(SGD()) == ("SGD(learning_rate=0.5, steps=300, sampling_rate=0.05, hidden=(), "
                           "expected_batch_size=None)")  # fmt: skip


def test_what_is_new_is_shown_where_it_is_not_the_default():
    text = repr(DPSGD(sampler="shuffled", clipping={"kind": "per-layer"}, trainable=["a.*"]))
    assert "sampler='shuffled'" in text and "per-layer" in text and "('a.*',)" in text
    assert "optimizer" not in text and "secure_noise" not in text


def named(value: object) -> str:
    """A test's name: the same in every process, without addresses."""
    return re.sub(r" at 0x[0-9a-f]+", "", str(value))


@pytest.mark.parametrize(
    ("given", "wanted"),
    [
        ({}, Sgd(learning_rate=0.5)),
        ({"optimizer": "momentum"}, Momentum(learning_rate=0.5)),
        ({"optimizer": {"kind": "momentum", "nesterov": True}}, Momentum(learning_rate=0.5, nesterov=True)),
        ({"optimizer": {"kind": "adam"}, "learning_rate": 0.1}, Adam(learning_rate=0.1)),
        ({"optimizer": {"kind": "adam", "learning_rate": 0.1}}, Adam(learning_rate=0.1)),
        ({"optimizer": {"kind": "adam", "betas": [0.8, 0.9]}}, Adam(learning_rate=0.5, betas=(0.8, 0.9))),
        ({"optimizer": Adam(learning_rate=0.2)}, Adam(learning_rate=0.2)),
        ({"optimizer": Adam(learning_rate=0.2), "learning_rate": 0.2}, Adam(learning_rate=0.2)),
    ],
)
def test_optimizers(given, wanted):
    settings = SGD(**given)
    assert settings.descent == wanted and settings.learning_rate == wanted.learning_rate


@pytest.mark.parametrize(
    ("given", "wanted"),
    [
        ({"clip_norm": 0.3}, GlobalClipping(norm=0.3)),
        ({"clipping": "automatic"}, AutomaticClipping(norm=1.0)),
        (
            {"clipping": {"kind": "automatic", "stability": 0.1}, "clip_norm": 2},
            AutomaticClipping(norm=2, stability=0.1),
        ),
        ({"clipping": {"kind": "per-layer"}, "clip_norm": 0.3}, PerLayerClipping(norm=0.3)),
        ({"clipping": {"kind": "per-layer", "norms": [3, 4]}}, PerLayerClipping(norms=[3, 4])),
        ({"clipping": {"kind": "global", "norm": 0.2}}, GlobalClipping(norm=0.2)),
        ({"clipping": PerLayerClipping(norm=0.2), "clip_norm": 0.2}, PerLayerClipping(norm=0.2)),
    ],
)
def test_clipping_rules(given, wanted):
    settings = DPSGD(**given)
    assert settings.rule == wanted and settings.clip_norm == wanted.sensitivity


def test_a_rule_without_a_norm_follows_the_clip_norm():
    settings = DPSGD(clipping="automatic", clip_norm=0.5)
    assert dataclasses.replace(settings, clip_norm=2.0).rule == AutomaticClipping(norm=2.0)


def test_a_table_of_convolutions_is_the_description():
    assert SGD(model=NET_TABLE).model == NET and SGD(model=NET_TABLE) == SGD(model=NET)


@pytest.mark.parametrize(
    "settings",
    [
        DPSGD(model=NET_TABLE, optimizer={"kind": "adam", "betas": [0.8, 0.9]}, clipping={"kind": "automatic"}),
        SGD(model="transformer", model_settings={"vocabulary": 5}, trainable=["head.*"]),
        DPSGD(model=factory, model_settings={"width": 5}, sampler="balls-and-bins"),
    ],
    ids=["tables", "names", "factory"],
)
def test_settings_are_values(settings):
    again = pickle.loads(pickle.dumps(settings))
    assert again == settings and hash(again) == hash(settings) and dataclasses.replace(settings) == settings
    assert dataclasses.replace(settings, steps=7) != settings
    with pytest.raises(TypeError, match="frozen"):
        settings.model_settings["width"] = 9


def test_a_change_of_what_was_given_changes_nothing():
    given = {"width": 5}
    settings = SGD(model=factory, model_settings=given)
    given["width"] = 6
    assert settings.model_settings == {"width": 5}


@pytest.mark.parametrize(
    ("settings", "stacks"),
    [
        (SGD(), True),
        (SGD(hidden=[3], sampler="shuffled"), True),
        (DPSGD(clipping=GlobalClipping(norm=0.5), optimizer=Sgd(learning_rate=2.0)), True),
        (DPSGD(model=NET, hidden=[3]), True),
        (SGD(model="cnn"), True),
        (SGD(model="mlp", hidden=[3]), True),
        (SGD(model="mlp", hidden=[3], model_settings={"activation": "tanh"}), False),
        (SGD(optimizer="momentum"), False),
        (DPSGD(clipping="automatic"), False),
        (DPSGD(secure_noise=True), False),
        (SGD(physical_batch_size=8), False),
        (SGD(trainable=["*"]), False),
        (SGD(model=factory), False),
    ],
    ids=named,
)
def test_which_settings_stack(settings, stacks):
    assert settings.stacks is stacks


# ---- claims ---------------------------------------------------------------------------------------------------------

RECIPE = {"noise_multiplier": 1.3, "sampling_rate": 0.1, "steps": 20}


@pytest.mark.parametrize(
    ("sampler", "relation"),
    [
        ("poisson", "add-remove"),
        ("balls-and-bins", "zero-out"),
        ("shuffled", "zero-out"),
        ("fixed-size", "zero-out"),
    ],
)
def test_each_sampler_makes_its_own_claim(sampler, relation):
    claim = DPSGD(**RECIPE, sampler=sampler).claim()
    wanted = Claim.dp_sgd(**RECIPE, sampler=sampler, adjacency=relation)
    assert claim == wanted and claim.mechanism.sampler == sampler
    assert claim.adjacency == relation, "what happens to the other batches when a member is left out"


def test_full_batches_claim_a_gaussian():
    settings = DPSGD(noise_multiplier=5, sampling_rate=1, steps=3, sampler="full-batch")
    assert settings.claim().epsilon(1e-5) == Claim.gaussian(noise_multiplier=5, steps=3).epsilon(1e-5)


@pytest.mark.parametrize(
    "changes",
    [
        {"clipping": "per-layer", "clip_norm": 0.1},
        {"clipping": "automatic"},
        {"clipping": PerLayerClipping(norms=[3, 4])},
        {"optimizer": Adam(learning_rate=0.1)},
        {"model": factory, "trainable": ["2.*"]},
        {"model": NET},
        {"secure_noise": True},
        {"physical_batch_size": 4},
    ],
    ids=named,
)
def test_the_rest_changes_no_claim(changes):
    assert DPSGD(**RECIPE, **changes).claim() == DPSGD(**RECIPE).claim()


# ---- what is refused ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"sampler": "uniform"}, "sampler must be one of poisson"),
        ({"sampler": "full-batch"}, "sampling_rate must be 1 for full batches"),
        ({"sampler": "balls-and-bins", "sampling_rate": 0.3}, "sampling_rate must be 1 over"),
        ({"model": "resnet"}, "model must be one of softmax"),
        ({"model": 3}, "model must be one of softmax"),
        ({"model": "no.such.module:net"}, "no module"),
        ({"model": f"{__name__}:nothing"}, "nothing"),
        ({"model": f"{__name__}:ROOT"}, "model must name a function"),
        ({"model": "mlp"}, "hidden must list"),
        ({"model": "softmax", "hidden": [3]}, r"hidden must be \(\) for the model softmax"),
        ({"model": factory, "hidden": [3]}, r"hidden must be \(\) for the model factory"),
        ({"model": {"shape": [8, 8, 1]}}, "shape and layers"),
        ({"model": {"shape": [8, 8, 1], "layers": [{"channel": 3}]}}, "a convolution must be a table of channels"),
        ({"model": {"shape": 8, "layers": []}}, "shape must be height"),
        ({"model": {"shape": [8, 8, 1], "layers": [{"channels": 3, "kernel": 9}]}}, "kernel must fit"),
        ({"model_settings": {"activation": "tanh"}}, "model_settings of softmax must be empty, got 'activation'"),
        ({"model_settings": 3}, "model_settings must be a table"),
        ({"model_settings": {"x": {1, 2}}, "model": factory}, "model_settings must hold numbers"),
        ({"model": factory, "model_settings": {"depth": 3}}, "model_settings do not fit"),
        ({"model": NET, "model_settings": {"activation": "gelu"}}, "activation must be one of relu, tanh"),
        ({"model": NET, "model_settings": {"image": [8, 8, 1]}}, "model_settings of convolutions"),
        ({"model": "cnn", "model_settings": {"image": 8}}, "image must be height, width and channels"),
        ({"model": "transformer"}, "vocabulary"),
        ({"model": "transformer", "model_settings": {"vocabulary": 0}}, "vocabulary"),
        ({"optimizer": "adamw"}, "kind of optimizer must be one of sgd, momentum, adam"),
        ({"optimizer": {"momentum": 0.9}}, "kind of optimizer"),
        ({"optimizer": {"kind": "adam", "momentum": 0.9}}, "optimizer of kind adam.*'momentum'"),
        ({"optimizer": {"kind": "momentum", "momentum": 2}}, "optimizer: momentum"),
        (
            {"optimizer": {"kind": "adam", "learning_rate": 0.1}, "learning_rate": 0.2},
            "learning_rate must be that of opt",
        ),
        ({"optimizer": 3}, "optimizer must be Optimizer, a kind"),
        ({"trainable": "head.*"}, "trainable must be a list"),
        ({"trainable": [3]}, "trainable must be a list"),
        ({"physical_batch_size": 0}, "physical_batch_size"),
    ],
    ids=named,
)
def test_what_does_not_fit_is_refused_by_name(changes, named):
    for kind in (SGD, DPSGD):
        with pytest.raises(InputError, match=named):
            kind(**changes)


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"clipping": "flat"}, "kind of clipping must be one of global, per-layer, automatic"),
        ({"clipping": {"kind": "global", "stability": 1}}, "clipping of kind global.*'stability'"),
        ({"clipping": {"kind": "automatic", "stability": 0}}, "clipping: stability"),
        ({"clipping": GlobalClipping(norm=0.5), "clip_norm": 2.0}, "clip_norm must be that of clipping"),
        ({"clipping": 0.5}, "clipping must be Clipping, a kind"),
        ({"secure_noise": 1}, "secure_noise must be true or false"),
        ({"secure_noise": True, "noise_multiplier": 0}, "secure_noise must be false"),
    ],
    ids=named,
)
def test_what_does_not_fit_a_private_training_is_refused_by_name(changes, named):
    with pytest.raises(InputError, match=named):
        DPSGD(**changes)


# ---- specs ----------------------------------------------------------------------------------------------------------

TOML = """
[settings]
sampler = "balls-and-bins"
sampling_rate = 0.1
steps = 20
noise_multiplier = 1.3
optimizer = { kind = "adam", learning_rate = 0.01 }
clipping = { kind = "per-layer", norm = 0.5 }
trainable = ["1.*"]
model_settings = { activation = "tanh" }

[settings.model]
shape = [8, 8, 1]
layers = [{ channels = 3, kernel = 3 }]
"""


def spec_with(trainer: str, settings: dict, folder: str | None = None):
    spec = load_spec("digits").model_dump(mode="json")
    part = {"name": "one", "trainer": trainer, "settings": settings}
    return load_spec(spec | {"trainers": [part]}).model_copy(update={"folder": folder})


def test_a_spec_says_everything_that_settings_say():
    spec = spec_with("dp-sgd", tomllib.loads(TOML)["settings"])
    wanted = DPSGD(
        sampler="balls-and-bins", sampling_rate=0.1, steps=20, noise_multiplier=1.3, optimizer=Adam(learning_rate=0.01),
        clipping=PerLayerClipping(norm=0.5), trainable=["1.*"], model_settings={"activation": "tanh"},
        model=ConvolutionalNet((8, 8, 1), [Convolution(3, 3)]),
    )  # fmt: skip
    assert spec.trainers[0].build() == wanted
    assert load_spec(spec.model_dump(mode="json")).trainers[0].build() == wanted


def test_a_model_lies_beside_its_spec(tmp_path):
    (tmp_path / "beside_the_spec.py").write_text(
        "def net(features, classes, generator):\n    raise NotImplementedError\n"
    )
    spec = spec_with("sgd", {"model": "beside_the_spec:net"}, str(tmp_path))
    settings = spec.trainers[0].build(spec.folder)
    assert settings.factory.__name__ == "net" and settings.model == "beside_the_spec:net"
    assert str(tmp_path) not in sys.path
    assert dataclasses.replace(settings, steps=3).factory is settings.factory


def test_a_spec_names_the_trainer_that_does_not_fit():
    with pytest.raises(InputError, match=r"trainer 'one': sampler must be one of"):
        spec_with("sgd", {"sampler": "all"}).trainers[0].build()


def test_the_bundled_networks_claim_what_their_spec_says():
    private, plain = (t.build() for t in load_spec("fashion-mnist-cnn").trainers)
    assert 2.9 < private.claim().epsilon(1e-5) <= 3.0 and plain.claim() is None
    assert isinstance(private.model, ConvolutionalNet)


def test_settings_need_no_torch():
    code = (
        "import sys; from dpaudit.trainers import DPSGD\n"
        "DPSGD(model='cnn', optimizer='adam', clipping='per-layer', secure_noise=True).claim()\n"
        "print('torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert done.stdout.strip() == "False", done.stderr
