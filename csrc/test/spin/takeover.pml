/* Writers of one lane that are killed, or stopped and woken up again, between any two steps, and their successors.
 *
 * Rows of two words, two rows, appends of one and of two rows; lane.c and lane.py's claim, by hand. Memory is
 * sequentially consistent here: what weak memory adds is model_lane.cpp's. A slow writer stands for one that was
 * stopped. */

#define ROWS 2
#define TICKETS 4
#define WRITERS 3

#define whole(t, r) (t + ROWS >= r)

byte committed, reserved;
byte kept;                  /* the first word of the newest row, while an append overwrites that */
byte row[ROWS * 2];         /* what each word holds: 8 * ticket + the writer's number, 0 at first */
byte truth[TICKETS];        /* what was committed as each ticket's row */
byte owner;                 /* of the lane's kernel lock: a writer's number, 0 for none */
byte doomed;                /* the number of a writer that was sent SIGKILL */
byte started;               /* writers that have claimed the lane; in the order of their numbers */

inline read_newest(word) {
#ifndef NOTHING_KEPT
    if
    :: whole(c - 1, r) -> word = row[2 * ((c - 1) % ROWS)]
    :: else -> word = kept
    fi
#else
    word = row[2 * ((c - 1) % ROWS)]
#endif
}

inline reserve() {
    c = committed;
    r = reserved;
    assert(c <= r && r - c <= ROWS);  /* a successor is never refused the lane: its counters are sane */
    if
    :: c > 0 -> read_newest(n); assert(n == truth[c - 1])
    :: else
    fi;
#ifdef RESUME_BEHIND_THE_RESERVATION
    c = r;
#endif
    if
    :: c + 1 <= TICKETS -> n = 1
    :: c + 2 <= TICKETS -> n = 2
    :: else -> goto finished
    fi;
#ifdef LOWER_RESERVED
    reserved = c + n
#else
#ifndef RESERVE_AFTER_THE_COPY
    if
    :: r < c + n ->
#ifdef KEPT_AFTER_THE_RESERVATION
        reserved = c + n;
#endif
        if
        :: n == ROWS && c > 0 -> kept = row[2 * ((c - 1) % ROWS)]
        :: else
        fi;
        reserved = c + n
    :: else
    fi
#endif
#endif
}

inline copy_in() {
    t = c;
    do
    :: atomic { t < c + n ->
        row[2 * (t % ROWS)] = 8 * (t + 1) + me };
        atomic {
            row[2 * (t % ROWS) + 1] = 8 * (t + 1) + me;
            t++
        }
    :: else -> break
    od
}

inline commit() {
#ifdef RESERVE_AFTER_THE_COPY
    reserved = c + n;
#endif
    atomic {
        t = c;
        do
        :: t < c + n ->
            assert(truth[t] == 0);  /* a ticket is committed once */
            truth[t] = 8 * (t + 1) + me;
            t++
        :: else -> break
        od;
        assert(c + n > committed);
        committed = c + n
    }
}

proctype writer(byte me) {
    byte c, r, n, t;
    {
#ifdef NO_PROOF_OF_DEATH
        atomic { started == me - 1 -> started = me };  /* the last writer was silent for long */
#else
        atomic { started == me - 1 && owner == 0 -> started = me; owner = me };
#endif
        do
        :: reserve(); copy_in();
#ifdef LOCK_DROPPED_BEFORE_COMMIT
            owner = 0;
#endif
            commit();
#ifdef LOCK_DROPPED_BEFORE_COMMIT
            goto finished
#endif
        :: break
        od;
finished:
        skip
    } unless { doomed == me };
    d_step {
        if
        :: owner == me -> owner = 0  /* the kernel drops the locks of the dead */
        :: else
        fi;
        c = 0; r = 0; n = 0; t = 0
    }
}

proctype killer() {
end:
    do
    :: atomic { doomed < started && started < WRITERS -> doomed = started }
    od
}

/* Counts what was written by the newest row's first word. */
proctype counter() {
    byte c, r, word;
    c = committed;
    r = reserved;
    if
    :: c > 0 ->
        read_newest(word);
        d_step {
            if
#ifdef COUNTED_WITHOUT_A_SECOND_LOOK
            :: true ->
#else
            :: (whole(c - 1, r) -> whole(c - 1, reserved) : committed == c) ->
#endif
                assert(word == truth[c - 1])
            :: else
            fi
        }
    :: else
    fi
}

proctype reader() {
    byte c, r, t, first, second;
    c = committed;
    atomic {
        r = reserved;
        r = (r > c -> r : c);
        t = (r > ROWS -> r - ROWS : 0);
        do
        :: t + 1 < c -> t++
        :: break
        od
    };
    if
    :: t < c ->
        first = row[2 * (t % ROWS)];
        second = row[2 * (t % ROWS) + 1];
        d_step {
#ifndef NO_VALIDATION
            if
            :: whole(t, reserved) ->
#endif
                assert(first == truth[t] && second == truth[t])
#ifndef NO_VALIDATION
            :: else
            fi
#endif
        }
    :: else
    fi
}

init {
    atomic {
        byte number = 1;
        do
        :: number <= WRITERS -> run writer(number); number++
        :: else -> break
        od;
        run killer();
        if
        :: run counter()
        :: run reader()
        fi
    }
}
