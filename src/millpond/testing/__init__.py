"""What tests of Millpond, and of programs that use it, are made of."""
