"""Recurrent loops over time."""

from tinygrad import Tensor
from tinygrad import dtypes

from keras.src import tree
from keras.src.backend.common.stateless_scope import StatelessScope
from keras.src.backend.tinygrad.complex import by_parts
from keras.src.backend.tinygrad.core import cast
from keras.src.backend.tinygrad.core import convert_to_tensor
from keras.src.backend.tinygrad.core import scan
from keras.src.backend.tinygrad.engine.gates import gru_gates
from keras.src.backend.tinygrad.engine.gates import lstm_gates
from keras.src.backend.tinygrad.engine.gemm import matmul


def rnn(
    step_function,
    inputs,
    initial_states,
    go_backwards=False,
    mask=None,
    constants=None,
    unroll=False,
    input_length=None,
    time_major=False,
    zero_output_for_mask=False,
    return_all_outputs=True,
):
    """Iterates over the time dimension of `inputs`.

    Args:
        step_function: `step_function(input, states) -> (output, new_states)`
            for one time step; `input` and `output` lack the time axis.
        inputs: Tensor of shape `(samples, time, ...)`, or a structure of them.
        initial_states: List of state tensors, or of structures of them.
        go_backwards: Whether to iterate, and return outputs, from last to
            first.
        mask: Boolean tensor of shape `(samples, time)` or
            `(samples, time, 1)`. Where it is false a step keeps the states,
            and its output is the previous one (zeros before the first).
        constants: List of tensors passed to each step after the states.
        unroll: Whether to lay the steps out in the graph one by one.
        input_length: Sequence or tensor of shape `(samples,)` with the number
            of steps that count of each sample, an alternative to `mask`. An
            integer changes nothing: the time axis gives the number of steps.
        time_major: Whether inputs, mask and outputs have time first.
        zero_output_for_mask: Whether outputs of masked steps are zeros.
        return_all_outputs: Whether `outputs` holds all steps or the last one.

    Returns:
        `(last_output, outputs, new_states)`; `outputs` has shape
        `(samples, time, ...)`, with a time of 1 unless `return_all_outputs`.
    """
    inputs = tree.map_structure(convert_to_tensor, inputs)
    if not time_major:
        inputs = tree.map_structure(_swap_batch_and_time, inputs)
    steps = tree.flatten(inputs)[0].shape[0]
    if unroll and not steps:
        raise ValueError(
            "Unrolling requires a fixed number of timesteps, at least one. "
            f"Received: inputs with {steps} timesteps"
        )
    mask = _time_major_mask(mask, input_length, steps, time_major)
    states = tree.map_structure(convert_to_tensor, initial_states)
    constants = tuple(constants or ())

    def step(x, states):
        states = (*states, *constants) if constants else states
        output, new_states = step_function(x, states)
        return output, tree.pack_sequence_as(
            initial_states, tree.flatten(new_states)
        )

    # Where the last output is a state too, the others need not be kept.
    held = None
    if mask is None:

        def body(carry, x):
            nonlocal held
            output, new_states = step(x, carry)
            if not return_all_outputs:
                leaves = tree.flatten(new_states)
                held = next(
                    (i for i, s in enumerate(leaves) if s is output), None
                )
            return new_states, output if held is None else None

        carry, xs = states, inputs
    else:

        def body(carry, x):
            x, keep = x
            previous, states = carry
            output, new_states = step(x, states)
            previous = tree.map_structure(
                _zeros_like if zero_output_for_mask else _identity,
                previous,
            )
            output = _where(keep, output, previous)
            return (output, _where(keep, new_states, states)), output

        first = tree.map_structure(lambda x: x[0], inputs)
        with StatelessScope():
            # Only the shape of the output matters.
            output, _ = step(first, states)
        carry = (tree.map_structure(_zeros_like, output), states)
        xs = (inputs, mask)

    carry, outputs = scan(
        body, carry, xs, reverse=go_backwards, unroll=steps if unroll else 1
    )
    new_states = carry if mask is None else carry[1]
    if held is not None:
        last_output = tree.flatten(new_states)[held]
    else:
        if go_backwards:
            outputs = tree.map_structure(_flip, outputs)
        last_output = tree.map_structure(lambda x: x[-1], outputs)
    if not return_all_outputs:
        outputs = tree.map_structure(lambda x: x[None], last_output)
    if not time_major:
        outputs = tree.map_structure(_swap_batch_and_time, outputs)
    return last_output, outputs, new_states


def _identity(x):
    return x


def _zeros_like(x):
    return by_parts(Tensor.zeros_like, x)


def _flip(x):
    return by_parts(lambda part: part.flip(0), x)


def _swap_batch_and_time(x):
    return x.transpose(0, 1)


def _time_major_mask(mask, input_length, steps, time_major):
    """Returns a boolean mask of shape `(time, samples, ...)`, or `None`."""
    if mask is None:
        if input_length is None or isinstance(input_length, int):
            return None
        lengths = convert_to_tensor(input_length, "int32")
        if lengths.ndim == 0:
            return None
        times = Tensor.arange(steps, dtype=dtypes.int32)
        return times[:, None] < lengths[None, :]
    mask = convert_to_tensor(mask, "bool")
    return mask if time_major else _swap_batch_and_time(mask)


def _where(keep, new, old):
    """Selects by sample between two structures of equal shapes."""

    def select(new, old):
        dims = keep.shape + (1,) * (new.ndim - keep.ndim)
        return by_parts(keep.reshape(dims).where, new, cast(old, new.dtype))

    return tree.map_structure(select, new, old)


def cudnn_ok(*args, **kwargs):
    # A cuDNN question: `lstm` and `gru` below need no special hardware.
    return False


def lstm(
    inputs,
    initial_state_h,
    initial_state_c,
    mask,
    kernel,
    recurrent_kernel,
    bias,
    activation,
    recurrent_activation,
    return_sequences=False,
    go_backwards=False,
    unroll=False,
):
    """An LSTM with its inputs projected at once and its gates in one kernel.

    Raises:
        NotImplementedError: With a mask or unrolled, or with activations
            other than tanh and sigmoid, which `rnn` is for.
    """
    if mask is not None or unroll:
        raise NotImplementedError
    if not _are_standard(activation, recurrent_activation):
        raise NotImplementedError
    x = _project(inputs, kernel, bias)
    recurrent_kernel = convert_to_tensor(recurrent_kernel, x.dtype)
    states = _states(x, recurrent_kernel, initial_state_h, initial_state_c)

    def step(x, states):
        h, c = states
        h, c = lstm_gates(x, matmul(h, recurrent_kernel), c)
        return h, [h, c]

    return _run(step, x, states, go_backwards, return_sequences)


def gru(
    inputs,
    initial_state,
    mask,
    kernel,
    recurrent_kernel,
    bias,
    activation,
    recurrent_activation,
    return_sequences=False,
    go_backwards=False,
    unroll=False,
    reset_after=True,
):
    """A GRU with its inputs projected at once and its gates in one kernel.

    Raises:
        NotImplementedError: With a mask or unrolled, without a bias, with
            `reset_after=False`, or with activations other than tanh and
            sigmoid, which `rnn` is for.
    """
    if mask is not None or unroll or bias is None or not reset_after:
        raise NotImplementedError
    if not _are_standard(activation, recurrent_activation):
        raise NotImplementedError
    bias = convert_to_tensor(bias)
    x = _project(inputs, kernel, bias[0])
    recurrent_kernel = convert_to_tensor(recurrent_kernel, x.dtype)
    recurrent_bias = bias[1].cast(x.dtype)

    def step(x, states):
        (h,) = states
        h = gru_gates(x, matmul(h, recurrent_kernel), recurrent_bias, h)
        return h, [h]

    states = _states(x, recurrent_kernel, initial_state)
    return _run(step, x, states, go_backwards, return_sequences)


def _are_standard(activation, recurrent_activation):
    # Imported at use: Keras' ops import the backend.
    from keras.src import activations
    from keras.src import ops

    return activation in (
        activations.tanh,
        ops.tanh,
    ) and recurrent_activation in (activations.sigmoid, ops.sigmoid)


def _project(inputs, kernel, bias):
    """Multiplies all steps' inputs by a kernel; the result has time first."""
    kernel = convert_to_tensor(kernel)
    inputs = convert_to_tensor(inputs, kernel.dtype)
    x = matmul(_swap_batch_and_time(inputs), kernel)
    return x if bias is None else x + convert_to_tensor(bias, x.dtype)


def _states(x, recurrent_kernel, *states):
    shape = (x.shape[1], recurrent_kernel.shape[0])
    return [convert_to_tensor(s, x.dtype).expand(*shape) for s in states]


def _run(step, x, states, go_backwards, return_sequences):
    last_output, outputs, states = rnn(
        step,
        x,
        states,
        go_backwards=go_backwards,
        time_major=True,
        return_all_outputs=return_sequences,
    )
    return last_output, _swap_batch_and_time(outputs), states


def bidirectional_lstm(*args, **kwargs):
    # Nothing is gained by running the two directions together.
    raise NotImplementedError


def bidirectional_gru(*args, **kwargs):
    raise NotImplementedError
