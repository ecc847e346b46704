"""The example of the README: a small transformer, trained at several sequence lengths.

Run it with `brim find examples/finetune.py:Finetune --case seq_len=128,512 --memory 1GiB`.
"""

import torch
from torch import nn

import brim


class Finetune(brim.Workload):
    """One training step of a tiny encoder at the case's sequence length."""

    kind = "train"

    def build(self):
        """Make the model and its optimizer; self.device and self.case are set."""
        self.embed = nn.Embedding(1000, 128).to(self.device)
        self.model = nn.TransformerEncoderLayer(128, 4, batch_first=True).to(self.device)
        self.optimizer = torch.optim.AdamW([*self.embed.parameters(), *self.model.parameters()])

    def batch(self, size):
        """Return `size` samples of the worst case."""
        return torch.randint(0, 1000, (size, self.case.get("seq_len", 128)), device=self.device)

    def step(self, batch):
        """Run one whole step."""
        self.model(self.embed(batch)).square().mean().backward()
        self.optimizer.step()
        self.optimizer.zero_grad()


if __name__ == "__main__":
    findings = brim.find(Finetune, cases=[{"seq_len": 128}, {"seq_len": 512}], memory="1GiB")
    for finding in findings:
        print(finding.case, "->", finding.microbatch)
