"""The path of one message: intake, admission, turn, delivery."""
