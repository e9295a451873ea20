"""The operation codes that stand in the lock's operation word; see ``recovery.py`` for what each leaves behind."""

OP_RESERVE, OP_COMMIT, OP_ABANDON, OP_EMPTY, OP_LEDGER, OP_WORDS = range(1, 7)
