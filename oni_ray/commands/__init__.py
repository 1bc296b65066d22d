"""Commands with many options, registered in oni_ray/cli.py; heavy imports stay inside the functions, as there."""
