"""A trainer of one's own, in plain torch with Opacus. Audit it with: dpaudit run examples/my_trainer.toml."""

import numpy as np
import torch
from opacus import GradSampleModule
from opacus.optimizers import DPOptimizer
from torch.nn.functional import cross_entropy

NOISE, RATE, STEPS, CLIP = 1.2, 0.1, 60, 1.0


class MyModel:
    """What an attacker sees of a trained model: its logits."""

    def __init__(self, net):
        self.net = net

    def logits(self, x):
        with torch.no_grad():
            return self.net(torch.as_tensor(x)).numpy()


def train(data, member, seed):
    """Train one model on the records that are members; `data.nominal_size` is public, `member.sum()` is not."""
    generator = torch.Generator().manual_seed(seed)
    x, y = torch.tensor(data.x[member]), torch.tensor(data.y[member])
    net = GradSampleModule(torch.nn.Linear(data.features, data.classes))
    for parameter in net.parameters():
        torch.nn.init.zeros_(parameter)
    optimizer = DPOptimizer(
        torch.optim.SGD(net.parameters(), lr=4.0),
        noise_multiplier=NOISE,
        max_grad_norm=CLIP,
        expected_batch_size=RATE * data.nominal_size,
        generator=generator,
    )
    sampling = np.random.default_rng([seed, 1])
    for _ in range(STEPS):
        batch = torch.from_numpy(sampling.random(len(x)) < RATE)
        optimizer.zero_grad()
        cross_entropy(net(x[batch]), y[batch]).backward()
        optimizer.step()
    return MyModel(net)
