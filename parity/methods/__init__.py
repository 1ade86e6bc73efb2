"""The methods compared, a family a file."""
