"""The one error that is meant for users."""


class UserError(Exception):
    """Something the user can put right, told in one line: what was given, what is allowed, what to type.

    Anything else that is raised is a defect, and shows its traceback.
    """

    def __init__(self, given: str, allowed: str = "", type_: str = "") -> None:
        parts = [given.rstrip(".")]
        if allowed:
            parts.append(f"Allowed: {allowed}")
        if type_:
            parts.append(f"Type: {type_}")
        super().__init__(". ".join(parts).replace("\n", " "))
