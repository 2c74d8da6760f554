"""What a Keras layer adds on tinygrad: nothing beyond the common layer."""


class TinygradLayer:
    pass
