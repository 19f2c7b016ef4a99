from tests.factories.kept_fits import kept_fits  # noqa: F401
