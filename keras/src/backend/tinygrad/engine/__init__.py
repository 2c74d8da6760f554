"""What is about tinygrad rather than Keras: one road from graph to launches.

`realize` and `compile_step` turn a lazy graph into a plan, a flat list of
launches over numbered buffers, and replay it; plans and programs are kept.
"""

from keras.src.backend.tinygrad.engine import patches as _patches
from keras.src.backend.tinygrad.engine.compiled_step import CompiledStep
from keras.src.backend.tinygrad.engine.compiled_step import compile_step
from keras.src.backend.tinygrad.engine.realize import clear_caches
from keras.src.backend.tinygrad.engine.realize import realize
from keras.src.backend.tinygrad.engine.runtime_lock import lock
from keras.src.backend.tinygrad.engine.tracing import HostReadError
from keras.src.backend.tinygrad.engine.tracing import track_state

_patches.apply()
