"""Rewards as a user would write them."""

WEIGHT = 3


def length(prompt, response):
    return len(response)


def broken(prompt, response):
    raise ZeroDivisionError("no luck")
