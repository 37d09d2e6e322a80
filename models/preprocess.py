"""Where `dual_module` finds the preprocessing, as its copy in an export finds preprocess.py beside it."""

from multicse.data.streams.preprocess import prepare_images as prepare_images
from multicse.data.streams.preprocess import prepare_sounds as prepare_sounds
