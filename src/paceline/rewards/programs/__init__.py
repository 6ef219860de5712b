"""What a program is worth: the tests of a row, and verdicts on what a program made of them."""
