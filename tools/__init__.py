"""Commands for those who maintain pdctl; not part of the installed package."""
