"""Keras on tinygrad: the backend's public names.

Tensors are lazy `tinygrad.Tensor`s. `core`, `numpy`, `nn`, `math`, `linalg`,
`image`, `random`, `rnn`, `layer`, `trainer` and `export` say what Keras asks
of a backend; `engine` says how tinygrad runs it.
"""

from keras.src.backend.common.name_scope import name_scope
from keras.src.backend.tinygrad import core
from keras.src.backend.tinygrad import distribution_lib
from keras.src.backend.tinygrad import image
from keras.src.backend.tinygrad import linalg
from keras.src.backend.tinygrad import math
from keras.src.backend.tinygrad import nn
from keras.src.backend.tinygrad import numpy
from keras.src.backend.tinygrad import random
from keras.src.backend.tinygrad.core import IS_THREAD_SAFE
from keras.src.backend.tinygrad.core import SUPPORTS_COMPLEX_DTYPES
from keras.src.backend.tinygrad.core import SUPPORTS_RAGGED_TENSORS
from keras.src.backend.tinygrad.core import SUPPORTS_SPARSE_TENSORS
from keras.src.backend.tinygrad.core import Variable
from keras.src.backend.tinygrad.core import cast
from keras.src.backend.tinygrad.core import compute_output_spec
from keras.src.backend.tinygrad.core import cond
from keras.src.backend.tinygrad.core import convert_to_numpy
from keras.src.backend.tinygrad.core import convert_to_tensor
from keras.src.backend.tinygrad.core import device_scope
from keras.src.backend.tinygrad.core import is_tensor
from keras.src.backend.tinygrad.core import random_seed_dtype
from keras.src.backend.tinygrad.core import scatter
from keras.src.backend.tinygrad.core import shape
from keras.src.backend.tinygrad.core import stop_gradient
from keras.src.backend.tinygrad.core import vectorized_map
from keras.src.backend.tinygrad.rnn import bidirectional_gru
from keras.src.backend.tinygrad.rnn import bidirectional_lstm
from keras.src.backend.tinygrad.rnn import cudnn_ok
from keras.src.backend.tinygrad.rnn import gru
from keras.src.backend.tinygrad.rnn import lstm
from keras.src.backend.tinygrad.rnn import rnn
