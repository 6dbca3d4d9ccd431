"""Load: people talk and confirm in threads while a test does something to the system."""

from __future__ import annotations

import threading
from collections.abc import Sequence

from tests.flows.system import Person

#: Seconds between two messages of a person.
PAUSE_SECONDS = 0.2


class Load:
    """Two people who delete one invoice after the other, each with a question and a yes, in threads."""

    def __init__(self, people: Sequence[Person], invoices: list[str]) -> None:
        self.people, self.done = people, list[str]()
        self._invoices, self._over, self._lock = list(invoices), threading.Event(), threading.Lock()
        self._threads = [threading.Thread(target=self._run, args=(person,)) for person in people]
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        """End the load once everybody has heard the last answer."""
        self._over.set()
        for thread in self._threads:
            thread.join()

    def _run(self, person: Person) -> None:
        while not self._over.is_set():
            with self._lock:
                invoice = self._invoices.pop(0) if self._invoices else ""
            self._over.wait(PAUSE_SECONDS)
            person.say(f"delete invoice {invoice}" if invoice else "hello")
            person.hears()
            if invoice:
                person.say("yes")
                assert "is deleted" in person.hears()[0]["text"]
                self.done.append(invoice)
