"""Why a ledger refuses a charge or a commit, in sentences for operators."""

from __future__ import annotations

from typing import Self

from stream.windows import utc_text

AFRESH = (
    "Where that is impossible, stop every worker of the feed and give it a new name (if feeds share the ledger: each "
    "of them, and "
    "the ledger, too): a new ledger releases windows of periods that begin after it was born"
)
"""What an operator can do if the ledger is lost or bound to other settings."""


class LedgerError(RuntimeError):
    """The ledger cannot prove what was spent, so nothing may be released."""


class SetBackError(LedgerError):
    """Redis remembers fewer windows than were committed, so it was set back to an older state of the ledger.

    ``of``: whose windows were counted.
    """

    def __init__(self, remembered: int, committed: int, of: str = "this feed") -> None:
        super().__init__(
            f"{committed} windows of {of} were committed, Redis remembers {remembered}: it was set back to an older "
            "state and "
            f"its budgets with it, so nothing is released. Restore the newest append-only file. {AFRESH}"
        )
        self.remembered, self.committed = remembered, committed


class BeforeBirthError(LedgerError):
    """The window belongs to a period that began before the ledger was born, so it is unknown what was spent in it."""

    def __init__(self, period: str, birth: int | None) -> None:
        born = "at a time that is not recorded" if birth is None else utc_text(birth)
        super().__init__(
            f"the ledger was born {born}; windows of period {period}, which began before, are not released, because "
            "another ledger "
            "may have granted its budgets. Wait for the next period, or state with 'hexveil ledger adopt' that none has"
        )


class RetiredError(LedgerError):
    """The window belongs to a retired period, whose charges were deleted, so it can never be released."""

    def __init__(self, period: str) -> None:
        super().__init__(
            f"period {period} is retired: no event of it could come any more, and what was spent in it is deleted, so "
            "its windows "
            "are not released. Leave them; 'hexveil ledger show' says which periods are retired"
        )


class TermsError(RuntimeError):
    """Another worker charged the period on other terms meanwhile, so the window has to be planned again."""


class AlreadyReleasedError(RuntimeError):
    """Another worker released the window meanwhile, so there is nothing left to do."""


class OutOfTurnError(LedgerError):
    """It is not the turn of a window: those of a feed are planned, charged and committed in the order of their time.

    ``other``: the window whose turn it is, or was: a later one that is planned already, the one that was planned last,
    or ``slot`` itself if it was set aside.
    """

    def __init__(self, slot: int, other: int) -> None:
        window, beside = f"window {utc_text(slot)}", utc_text(other)
        if other > slot:
            why = (
                f"{window} is never released, because the later window {beside} was planned already: windows are "
                "released in the order "
                "of their time, or the order would tell what nobody paid for. Leave it, and replay recordings oldest "
                "first"
            )
        elif other < slot:
            why = (
                f"{window} waits for window {beside}, which was planned last; it is planned once that one is committed"
            )
        else:
            why = f"{window} was set aside; once its cause is removed, 'hexveil ledger retry' lets it be closed again"
        super().__init__(why)
        self.other = other

    @classmethod
    def of(cls, slot: int, why: str) -> Self | None:
        """What a script refused ``slot`` for by ``why``; None if it was for another reason."""
        _, turn, other = why.rpartition("TURN ")
        return cls(slot, int(other)) if turn else None
