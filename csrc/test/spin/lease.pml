/* The lease of one seat: a controller that grants, renews and fences, agents that may be slow or dead at any step, and
 * an ingest of two threads that takes their rows; leases.py by hand.
 *
 * Messages wait in queues for as long as they like. A slow agent stands for one that was stopped and woken up: a zombie,
 * whose rows and renewals arrive late. Time passes in ticks of the clock of the table's machine. */

#ifndef SENDS
#define SENDS 2              /* renewals, and rows, of each agent */
#endif
#define EPOCHS 2
#ifndef TICKS
#define TICKS 3
#endif
#define LEASE 2              /* ticks of silence that end a lease */

byte epoch, holder, heard;   /* the seat's words in the table */
byte clock;
#ifdef CHECKED_WHEN_OPENED
byte opened;
#endif
bool locked;                 /* the ingest's lock */

bool ended[EPOCHS + 1];      /* what happened, for the assertions: by epoch, whether its lease has ended; */
byte arrived;                /* when the holder was last heard; */
byte taken;                  /* the last epoch of which a row was taken */

chan renewals = [1] of { byte, byte };
chan rows = [1] of { byte };

proctype agent(byte me) {
    byte renewed, sent;
    do
    :: atomic { nfull(renewals) && renewed < SENDS ->
        renewals!me, clock + 2;  /* by its own clock, which is fast */
        renewed++ }
    :: atomic { nfull(rows) && sent < SENDS ->
        rows!me;
        sent++ }
    :: break  /* it dies, or was told that its lease has ended */
    od;
    renewed = 0; sent = 0
}

inline grant() {
#ifndef EPOCH_REUSED
    epoch++;
#else
    epoch = 1;
#endif
    heard = clock;
    d_step {
        e = 1;
        do
        :: e < epoch -> assert(ended[e]); e++  /* nobody else holds the seat */
        :: else -> break
        od;
        holder = epoch;
        arrived = clock
    };
    run agent(epoch);
    granted++
}

inline renew() {
#ifdef RENEWAL_REVIVES
    if
    :: holder == 0 && e == epoch -> holder = e
    :: else
    fi;
#endif
    d_step {
        if
#ifdef RENEWED_WITHOUT_EPOCH
        :: holder != 0 ->
#else
        :: holder == e ->
#endif
            assert(!ended[e]);  /* the agent that is told to continue holds the seat */
            arrived = clock;
#ifdef ANOTHER_CLOCK
            heard = stamp
#else
            heard = clock
#endif
        :: else
        fi
    }
}

inline expire() {
    atomic {
        if
        :: holder != 0 && clock >= heard + LEASE ->
            ended[holder] = true;
#ifndef FENCED_LATER
            holder = 0
#endif
        :: else
        fi;
        assert(holder == 0 || ended[holder] || clock < arrived + LEASE)  /* silence has ended the lease */
    };
#ifdef FENCED_LATER
    if
    :: ended[holder] -> holder = 0
    :: else
    fi
#endif
}

active proctype controller() {
    byte e, stamp, granted;
end:
    do
    :: renewals?e, stamp -> renew(); e = 0; stamp = 0
#ifdef GRANTED_WHILE_HELD
    :: granted < EPOCHS -> grant(); e = 0
#else
    :: granted < EPOCHS && holder == 0 -> grant(); e = 0
#endif
    :: holder != 0 -> expire()
    od
}

active proctype time() {
    do
    :: clock < TICKS -> clock++
    :: else -> break
    od
}

active [2] proctype ingest() {
    byte e;
end:
    do
    :: rows?e ->
#ifndef TWO_INGESTS_AT_ONCE
        atomic { !locked -> locked = true };
#endif
        atomic {
            if
#ifdef NOT_CHECKED
            :: true ->
#else
#ifdef SEAT_CHECKED_ALONE
            :: holder != 0 ->
#else
#ifdef CHECKED_WHEN_OPENED
            :: holder == e || opened == e ->
#else
            :: holder == e ->
#endif
#endif
#endif
#ifdef CHECKED_WHEN_OPENED
                opened = e;
#endif
                assert(!ended[e])  /* no row of a fenced epoch is taken */
            :: else -> e = 0
            fi
        };
        if
        :: e ->  /* the rows go to the lane: behind them come those of later epochs alone */
            d_step { assert(taken <= e); taken = e; e = 0 }
        :: else
        fi;
#ifndef TWO_INGESTS_AT_ONCE
        locked = false
#endif
    od
}
