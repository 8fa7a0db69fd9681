"""The path of one message, from the intake over admission and the turn to the delivery."""
