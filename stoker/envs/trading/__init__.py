"""A portfolio over bars of prices, as a tensor program: see `env.Trading`."""
