"""Large linear layers that multiply by `products.linear`."""

import torch
from torch import Tensor, nn

from paceline.products import linear, onednn_serves


class ProductLinear(nn.Linear):
    """A linear layer like torch's, same parameters and names, faster on some CPUs."""

    def forward(self, input: Tensor) -> Tensor:
        """input @ weight.T + bias."""
        if torch.is_autocast_enabled(input.device.type) or not onednn_serves(input, self.weight):
            return super().forward(input)
        return linear(input, self.weight, self.bias)


def speed_up_linear_layers(model: nn.Module) -> None:
    """Let every plain linear layer of the model choose its product; layers of another class are left alone."""
    for module in model.modules():
        if type(module) is nn.Linear:
            module.__class__ = ProductLinear
