"""SavedModel export, which belongs to TensorFlow: it raises and says so."""


class TinygradExportArchive:
    """Stands for the archive that the other backends write."""

    def track(self, resource):
        raise NotImplementedError(
            "`export_saved_model` only currently supports the "
            "tensorflow, jax and torch backends. Save the model with "
            "`model.save('model.keras')`, and export it where it is loaded "
            "with one of them (`KERAS_BACKEND=jax`, say)."
        )

    def add_endpoint(self, name, fn, input_signature=None, **kwargs):
        self.track(fn)

    def track_and_add_endpoint(self, name, resource, input_signature, **kwargs):
        self.track(resource)
