"""Settings: what they are, where their values come from, and whether they can work together."""

from stoker.config.load import resolve as resolve
from stoker.config.presets import PRESETS as PRESETS
from stoker.config.schema import Config as Config
