"""Training, evaluation and prediction through compiled steps.

A step is traced once for each signature of its batch as a pure function of
variables and data (`StatelessScope`), and then replayed by `engine`.
"""

import warnings

import numpy as np

from keras.src import backend
from keras.src import callbacks as callbacks_module
from keras.src import optimizers as optimizers_module
from keras.src import tree
from keras.src.backend import config
from keras.src.backend.common.stateless_scope import in_stateless_scope
from keras.src.backend.tinygrad import engine
from keras.src.backend.tinygrad.complex import ComplexTensor
from keras.src.backend.tinygrad.core import UpdateScope
from keras.src.backend.tinygrad.core import get_device
from keras.src.backend.tinygrad.core import uninitialized_variables
from keras.src.backend.tinygrad.engine.gradient import gradients
from keras.src.trainers import trainer as base_trainer
from keras.src.trainers.data_adapters import array_slicing
from keras.src.trainers.data_adapters import data_adapter_utils
from keras.src.trainers.epoch_iterator import EpochIterator
from keras.src.utils import traceback_utils
from keras.src.utils.python_utils import pythonify_logs


class TinygradTrainer(base_trainer.Trainer):
    def __init__(self):
        super().__init__()
        self.train_function = None
        self.test_function = None
        self.predict_function = None

    def _resolve_auto_jit_compile(self):
        # Steps are compiled unless `run_eagerly` says otherwise; `True` asks
        # for an error where that is impossible, which "auto" does not.
        return False

    def train_step(self, data):
        x, y, sample_weight = data_adapter_utils.unpack_x_y_sample_weight(data)
        y_pred = self._forward(x, training=True)
        loss = self._compute_loss(
            x=x, y=y, y_pred=y_pred, sample_weight=sample_weight, training=True
        )
        scaled = loss if self.optimizer is None else self._scale(loss)
        weights = self.trainable_weights
        # Gradients come before anything that may run part of the forward
        # graph, such as a metric's update.
        grads = gradients(scaled, [v.value for v in weights])
        if not in_stateless_scope():
            engine.realize(
                *filter(backend.is_tensor, tree.flatten((loss, y_pred, grads)))
            )
        self._track_loss(loss, x)
        if weights:
            self.optimizer.apply(grads, weights)
        else:
            warnings.warn("The model does not have any trainable weights.")
        return self.compute_metrics(x, y, y_pred, sample_weight=sample_weight)

    def test_step(self, data):
        x, y, sample_weight = data_adapter_utils.unpack_x_y_sample_weight(data)
        y_pred = self._forward(x, training=False)
        loss = self._compute_loss(
            x=x, y=y, y_pred=y_pred, sample_weight=sample_weight, training=False
        )
        self._track_loss(loss, x)
        return self.compute_metrics(x, y, y_pred, sample_weight=sample_weight)

    def predict_step(self, data):
        x, _, _ = data_adapter_utils.unpack_x_y_sample_weight(data)
        return self._forward(x, training=False)

    def _forward(self, x, training):
        if self._call_has_training_arg:
            return self(x, training=training)
        return self(x)

    def _scale(self, loss):
        return backend.convert_to_tensor(self.optimizer.scale_loss(loss))

    def _track_loss(self, loss, x):
        batch = next(leaf for leaf in tree.flatten(x) if leaf is not None)
        self._loss_tracker.update_state(loss, sample_weight=batch.shape[0])

    def make_train_function(self, force=False):
        if self.train_function is None or force:
            self.train_function = _Function(self, self.train_step, _last)
        return _refreshed(self.train_function)

    def make_test_function(self, force=False):
        if self.test_function is None or force:
            self.test_function = _Function(self, self.test_step, _last)
        return _refreshed(self.test_function)

    def make_predict_function(self, force=False):
        if self.predict_function is None or force:
            self.predict_function = _Function(
                self, self.predict_step, _concatenate
            )
        return _refreshed(self.predict_function)

    @traceback_utils.filter_traceback
    def fit(
        self,
        x=None,
        y=None,
        batch_size=None,
        epochs=1,
        verbose="auto",
        callbacks=None,
        validation_split=0.0,
        validation_data=None,
        shuffle=True,
        class_weight=None,
        sample_weight=None,
        initial_epoch=0,
        steps_per_epoch=None,
        validation_steps=None,
        validation_batch_size=None,
        validation_freq=1,
    ):
        self._assert_compile_called("fit")
        limit = config.max_epochs()
        if limit and limit < epochs:
            warnings.warn(f"Limiting epochs to {limit}")
            epochs = limit
        if validation_split and validation_data is None:
            (x, y, sample_weight), validation_data = (
                array_slicing.train_validation_split(
                    (x, y, sample_weight), validation_split=validation_split
                )
            )
        batches = EpochIterator(
            x=x,
            y=y,
            sample_weight=sample_weight,
            batch_size=batch_size,
            steps_per_epoch=steps_per_epoch,
            shuffle=shuffle,
            class_weight=class_weight,
            steps_per_execution=self.steps_per_execution,
        )
        if batches.num_batches == 0:
            raise ValueError(_no_batch("fit", x))
        self._build_from(batches)
        callbacks = self._callback_list(
            callbacks,
            batches,
            verbose,
            add_history=True,
            epochs=epochs,
        )
        self.stop_training = False
        self.make_train_function()
        self._eval_epoch_iterator = None
        epoch_logs = {}
        callbacks.on_train_begin()
        for epoch in range(self._initial_epoch or initial_epoch, epochs):
            self.reset_metrics()
            callbacks.on_epoch_begin(epoch)
            # A callback may have frozen layers, say.
            self.make_train_function()
            logs = {}
            for first, last, data in batches:
                callbacks.on_train_batch_begin(first)
                logs = self.train_function(data)
                callbacks.on_train_batch_end(last, logs)
                if self.stop_training:
                    break
            epoch_logs = dict(self._get_metrics_result_or_logs(logs))
            if validation_data is not None and self._should_eval(
                epoch, validation_freq
            ):
                results = self._validate(
                    validation_data,
                    batch_size=validation_batch_size or batch_size,
                    steps=validation_steps,
                    callbacks=callbacks,
                )
                epoch_logs.update({f"val_{k}": v for k, v in results.items()})
            callbacks.on_epoch_end(epoch, epoch_logs)
            if self.stop_training:
                break
        if epochs > 0 and isinstance(
            self.optimizer, optimizers_module.Optimizer
        ):
            self.optimizer.finalize_variable_values(self.trainable_weights)
        self._eval_epoch_iterator = None
        callbacks.on_train_end(logs=epoch_logs)
        return self.history

    def _validate(self, validation_data, batch_size, steps, callbacks):
        """Evaluates on the validation data, whose iterator `fit` keeps."""
        x, y, sample_weight = data_adapter_utils.unpack_x_y_sample_weight(
            validation_data
        )
        if self._eval_epoch_iterator is None:
            self._eval_epoch_iterator = self._evaluation_batches(
                x, y, sample_weight, batch_size, steps
            )
        return self.evaluate(
            x=x,
            y=y,
            sample_weight=sample_weight,
            batch_size=batch_size,
            steps=steps,
            callbacks=callbacks,
            return_dict=True,
            _use_cached_eval_dataset=True,
        )

    def _evaluation_batches(self, x, y, sample_weight, batch_size, steps):
        return EpochIterator(
            x=x,
            y=y,
            sample_weight=sample_weight,
            batch_size=batch_size,
            steps_per_epoch=steps,
            shuffle=False,
            steps_per_execution=self.steps_per_execution,
        )

    def _build_from(self, batches):
        """Builds what is not built yet from a batch, and starts over."""
        # From no more than one: a generator gives back only the few batches
        # that its adapter has looked at.
        steps, batches.steps_per_execution = batches.steps_per_execution, 1
        self._symbolic_build(iterator=batches)
        batches.steps_per_execution = steps
        batches.reset()

    def _callback_list(self, callbacks, batches, verbose, epochs=1, **kwargs):
        if isinstance(callbacks, callbacks_module.CallbackList):
            return callbacks
        return callbacks_module.CallbackList(
            callbacks,
            add_progbar=verbose != 0,
            verbose=verbose,
            epochs=epochs,
            steps=batches.num_batches,
            model=self,
            **kwargs,
        )

    @traceback_utils.filter_traceback
    def evaluate(
        self,
        x=None,
        y=None,
        batch_size=None,
        verbose="auto",
        sample_weight=None,
        steps=None,
        callbacks=None,
        return_dict=False,
        **kwargs,
    ):
        self._assert_compile_called("evaluate")
        cached = kwargs.pop("_use_cached_eval_dataset", False)
        if kwargs:
            raise ValueError(f"Arguments not recognized: {kwargs}")
        batches = (
            self._eval_epoch_iterator
            if cached
            else self._evaluation_batches(
                x, y, sample_weight, batch_size, steps
            )
        )
        self._build_from(batches)
        callbacks = self._callback_list(callbacks, batches, verbose)
        self.make_test_function()
        self.stop_evaluating = False
        callbacks.on_test_begin()
        logs = {}
        self.reset_metrics()
        for first, last, data in batches:
            callbacks.on_test_batch_begin(first)
            logs = self.test_function(data)
            callbacks.on_test_batch_end(last, logs)
            if self.stop_evaluating:
                break
        logs = pythonify_logs(self._get_metrics_result_or_logs(logs))
        callbacks.on_test_end(logs)
        return logs if return_dict else self._flatten_metrics_in_order(logs)

    @traceback_utils.filter_traceback
    def predict(
        self, x, batch_size=None, verbose="auto", steps=None, callbacks=None
    ):
        batches = EpochIterator(
            x=x,
            batch_size=batch_size,
            steps_per_epoch=steps,
            shuffle=False,
            steps_per_execution=self.steps_per_execution,
        )
        callbacks = self._callback_list(callbacks, batches, verbose)
        self.make_predict_function()
        self.stop_predicting = False
        callbacks.on_predict_begin()
        outputs = []
        for first, last, data in batches:
            callbacks.on_predict_batch_begin(first)
            result = self.predict_function(data)
            outputs.append(tree.map_structure(backend.convert_to_numpy, result))
            callbacks.on_predict_batch_end(last, {"outputs": result})
            if self.stop_predicting:
                break
        if not outputs:
            raise ValueError(_no_batch("predict", x))
        callbacks.on_predict_end()
        return _concatenate(outputs)

    def train_on_batch(
        self,
        x,
        y=None,
        sample_weight=None,
        class_weight=None,
        return_dict=False,
    ):
        self._assert_compile_called("train_on_batch")
        if class_weight is not None:
            if sample_weight is not None:
                raise ValueError(
                    "Arguments `sample_weight` and `class_weight` "
                    "cannot be specified at the same time. "
                    f"Received: sample_weight={sample_weight}, "
                    f"class_weight={class_weight}"
                )
            sample_weight = data_adapter_utils.class_weight_to_sample_weights(
                y, class_weight
            )
        data = (x, y, sample_weight)
        self._symbolic_build(data_batch=data)
        return self._on_batch(self.make_train_function(), data, return_dict)

    def test_on_batch(
        self,
        x,
        y=None,
        sample_weight=None,
        return_dict=False,
    ):
        self._assert_compile_called("test_on_batch")
        data = (x, y, sample_weight)
        self._symbolic_build(data_batch=data)
        return self._on_batch(self.make_test_function(), data, return_dict)

    def _on_batch(self, function, data, return_dict):
        self.reset_metrics()
        logs = pythonify_logs(function([data]))
        return logs if return_dict else self._flatten_metrics_in_order(logs)

    def predict_on_batch(self, x):
        outputs = self.make_predict_function()([(x,)])
        return tree.map_structure(backend.convert_to_numpy, outputs)


def _no_batch(name, x):
    return (
        f"`{name}` needs at least one batch, and the data has none. "
        f"Received: x={x}"
    )


def _concatenate(results):
    """Joins the nested results of several batches along the first axis."""
    if len(results) == 1:
        return results[0]
    join = (
        (lambda *xs: np.concatenate(xs))
        if isinstance(tree.flatten(results)[0], np.ndarray)
        else (lambda *xs: backend.numpy.concatenate(xs))
    )
    return tree.map_structure(join, *results)


def _last(results):
    return results[-1]


def _refreshed(function):
    # A subclass may put a function of its own in place.
    if isinstance(function, _Function):
        function.refresh()
    return function


class _Function:
    """A function of a list of batches, each of which a step is run on."""

    def __init__(self, trainer, step, join):
        self.step = step if trainer.run_eagerly else _Step(trainer, step)
        self.join = join

    def __call__(self, batches):
        return self.join([self.step(batch) for batch in batches])

    def refresh(self):
        if isinstance(self.step, _Step):
            self.step.refresh()


class _Step:
    """A trainer's step, compiled; uncompiled where it reads host values."""

    def __init__(self, trainer, step):
        self.trainer = trainer
        self.must_compile = trainer.jit_compile
        self.step = step
        self.compiled = engine.compile_step(self._trace)
        self.models = {}
        self.model = None

    def refresh(self):
        """Looks what the model is made of now: a trace holds for that."""
        self.model = self.models.setdefault(self._parts(), len(self.models))

    def _parts(self):
        parts = []
        for layer in self.trainer._flatten_layers():
            parts += (layer, layer.trainable)
            for variables in (
                layer._trainable_variables,
                layer._non_trainable_variables,
            ):
                for variable in variables:
                    parts += (id(variable), variable.trainable)
        return tuple(parts)

    def __call__(self, data):
        if self.compiled is None:
            return self.step(data)
        try:
            outputs, assigned = self.compiled(data, (self.model, get_device()))
        except engine.HostReadError as error:
            if self.must_compile:
                raise
            warnings.warn(
                f"`{self.step.__name__}` runs uncompiled, because it reads a "
                f"tensor's value on the host: {error}"
            )
            self.compiled = None
            return self.step(data)
        for variable, value in assigned:
            variable._direct_assign(value)
        return outputs

    def _trace(self, data):
        """Runs the step without effects.

        Returns:
            Pair of outputs and a list of `(variable, new_value)`. The outputs
            are what the step returns and another such list, of complex
            variables: their values have two buffers each.
        """
        with UpdateScope(collect_losses=True) as scope:
            outputs = self.step(data)
            created = uninitialized_variables()
        if created:
            # The step made variables, which have their buffers only now.
            with UpdateScope(collect_losses=True) as scope:
                outputs = self.step(data)
            self.models[self._parts()] = self.model
        # What is computed on the scope's device stays where the variable is.
        updates = [
            (variable, value.to(variable._value.device))
            for variable, value in scope.updates()
        ]
        stored, assigned = [], []
        for update in updates:
            pair = isinstance(update[1], ComplexTensor)
            (assigned if pair else stored).append(update)
        return (outputs, assigned), stored
