"""SavedModel export, which belongs to TensorFlow: it raises and says so."""


class TinygradExportArchive:
    def track(self, resource):
        raise NotImplementedError(
            "SavedModel export is not available with the tinygrad backend: "
            "the format belongs to TensorFlow. Save the model with "
            "`model.save('model.keras')`, or load it under "
            "`KERAS_BACKEND=tensorflow` and export it there."
        )

    def add_endpoint(self, name, fn, input_signature=None, **kwargs):
        self.track(fn)
