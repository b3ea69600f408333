r"""The rules of resource pools, as pure functions on plain records: no I/O, no clock, no threads, no randomness.

`step.step(state, command, now) -> outcome` decides; whole numbers only, and every choice has a total order. This page
is the specification. Memory, SQLite, the log and Temporal run it as it is.

**A request** is `waiting`, `offered`, `held`, or `away`.

    waiting --hand-off--> offered --claim--> held --release, expiry, revocation, proof of death--> (over)
       |  ^                  |                 \--adopt--> held under a new token
       |  |                  +--no claim in time--> away --claim--> waiting, in its old place
       |  +--decline---------+                       ^
       +--its process died, the id was chosen--------+   (else over)

Rules, by the promises of DESIGN.md that they keep:

- *Hand-off* (G3, G4). Whatever frees units gives them, in the same step, to the first waiter that can use them; so
  units that are free now are wanted by nobody, and a newcomer that takes them overtakes nobody. First is: the group
  whose turn it is (fair share by weight), then priority (or age, `Settings.ageing`), then the order of asking.
- *Offer* (a waiter may be gone). A hand-off to another session is an offer until claimed. One's own waiters are there,
  and so is nobody (session "").
- *Bundles* are all or nothing. Others may overtake a bundle until it has waited `Settings.patience`; from then on it is
  overdue: what it can use is kept for it, for one bundle at a time, the oldest first, and it is served first. The same
  goes for the quota of its group. Nothing is ever held in part, so bundles cannot deadlock.
- *Exclusive* is who wants several units, or all, of one resource by name: a writer among readers. While it waits,
  nobody who asked later is given units of that resource, but for those of its own group whom priority (or age) puts
  before it. It holds nobody up while it could not have them in any case: the resource is not active or too small, or
  its group has no room for it. It waits for older ones only, so there is no circle. When it is overdue, nothing but
  the quota is kept for it.
- *Hopeless* is what could not be served if nobody held anything: told so at once, or as soon as it comes to that,
  unless it is patient.
- *Tokens* (G2): `max(last + 1, now, highest seen by the client + 1)`, one counter per pool.
- *Time* (G8) ends offers, leases, waits and absences, never a lock. What is over ends before a command is looked at.
- *Staleness* (G9). Release, renew, pass and adopt name a token; one that does not count changes nothing and is told
  why. A transfer takes two: the holder passes the grant on, then another adopts it. Thefts and keeping need no leave.
- *Ids* (G7) take effect once: known ones tell how they stand, used ones that they are used.

Read in this order:

    records, commands, changes    the nouns, what can be asked, what can come of it
    selectors                     which resources a request will take
    plainly                       the rules, said plainly: what may be given to whom, from the records alone
    state, image                  the records of one pool and `evolve`; a pool at rest
    index, line                   what can be derived from the records, and makes questions quick
    placement                     which of several resources, and matching for bundles
    handover                      who is next: what became free, share, quotas, exclusive requests, reservations
    step                          the verbs
    wire, replica                 changes and states as bytes; a copy that decides or follows
"""
