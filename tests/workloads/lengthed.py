"""Training on texts of several lengths."""

import torch
from simple import WIDTH, Train


class Texts(Train):
    def batch(self, size):
        return torch.ones(size, self.case.get("seq_len", 64), WIDTH // 4, device=self.device).repeat(1, 1, 4)


class Keeps(Texts):
    """Holds on to a batch of every length that it has seen, as caches do."""

    def build(self):
        super().build()
        self.seen = {}

    def batch(self, size):
        self.seen.pop(self.case["seq_len"], None)
        self.seen[self.case["seq_len"]] = torch.ones(size, 1024, 1024, device=self.device)
        return torch.ones(size, WIDTH, device=self.device)


class Fixed(Texts):
    """Can be run on the length only that it was built for."""

    def build(self):
        super().build()
        self.mask = torch.ones(self.case["seq_len"], 1)

    def step(self, batch):
        super().step(batch * self.mask)
