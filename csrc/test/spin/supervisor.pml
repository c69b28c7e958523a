/* The parent's decision to restart a worker: what it may conclude from a pidfd, from a heartbeat, and when.
 *
 * Two workers that write a lane each, none of which asks for its lane's lock here: the parent alone keeps a second
 * writer away. A worker may end well, fail, or freeze at any moment; frozen, it may wake up again. Time is not
 * modelled: a frozen worker's heartbeat is stale sooner or later, and a back-off ends sooner or later.
 *
 * Design only, by hand: it says what a supervisor has to do, whatever its code looks like. */

#define WORKERS 2
#ifndef MOST_RESTARTS
#define MOST_RESTARTS 1 /* of a worker */
#endif

mtype = { RUNNING, FROZEN, ENDED_WELL, FAILED };
mtype = { WATCHED, KILLED, BACKING_OFF, FINISHED };

mtype process[WORKERS];       /* the kernel's: how its newest process is; ENDED_WELL and FAILED: its pidfd says so */
byte alive[WORKERS];          /* processes of the worker that live */
bool doomed[WORKERS];         /* SIGKILL was sent to the newest one, and takes its time */
bool stale[WORKERS];          /* its heartbeat was silent for long, as far as the parent knows */
bool froze[WORKERS];          /* its newest process froze at least once */
mtype seen[WORKERS];          /* what the parent is about with it */
byte restarts[WORKERS];       /* as the parent counts */
byte starts[WORKERS];         /* as they were */
bool asked;                   /* SIGINT or SIGTERM came */
bool missed;                  /* it had come when the parent last slept */
bool stopping, failed, ended; /* the parent told everybody to stop; for that reason; train() returns */

proctype worker(byte me) {
    bool woke;
    {
        do
        :: atomic { process[me] == RUNNING -> process[me] = ENDED_WELL; alive[me]--; break }  /* done, or told to */
        :: atomic { process[me] == RUNNING -> process[me] = FAILED; alive[me]--; break }
        :: atomic {
            process[me] == RUNNING && !woke ->
            process[me] = FROZEN;
            froze[me] = true;
            if
            :: woke = true  /* which it never will */
            :: true
            fi
        }
        :: d_step { process[me] == FROZEN && !stale[me] -> stale[me] = true }
        :: d_step { process[me] == FROZEN && !woke -> process[me] = RUNNING; stale[me] = false; woke = true }
        od
    } unless { doomed[me] && (process[me] == RUNNING || process[me] == FROZEN) };
    atomic {
        if
        :: process[me] == RUNNING || process[me] == FROZEN -> process[me] = FAILED; alive[me]--
        :: else
        fi;
        woke = false
    }
}

inline start(w) {
    atomic {
        assert(alive[w] == 0);  /* never two writers on a lane */
        assert(!stopping && !missed && !failed);
        starts[w]++;
        assert(starts[w] <= 1 + MOST_RESTARTS);
        process[w] = RUNNING;
        alive[w]++;
        doomed[w] = false;
        froze[w] = false;
#ifndef JUDGED_BY_ITS_PREDECESSORS_HEARTBEAT
        stale[w] = false;
#endif
        seen[w] = WATCHED;
        run worker(w)
    }
}

inline died(w) {
    if
    :: process[w] == ENDED_WELL ->
#ifdef RESTARTED_THOUGH_DONE
        seen[w] = BACKING_OFF
#else
        seen[w] = FINISHED
#endif
#ifdef RESTARTED_FOR_EVER
    :: process[w] == FAILED -> seen[w] = BACKING_OFF
#else
    :: process[w] == FAILED && restarts[w] == MOST_RESTARTS -> failed = true
    :: process[w] == FAILED && restarts[w] < MOST_RESTARTS -> restarts[w]++; seen[w] = BACKING_OFF
#endif
    fi
}

#define dead(w) (process[w] == ENDED_WELL || process[w] == FAILED)

/* The worker's part in a round. */
inline attend(w) {
    if
    :: seen[w] == WATCHED && dead(w) -> d_step { died(w) }
#ifndef NOBODY_KILLS_THE_FROZEN
    :: seen[w] == WATCHED && stale[w] && !dead(w) ->
#ifdef REPLACED_WHEN_STALE
        if
        :: restarts[w] < MOST_RESTARTS -> restarts[w]++; start(w)
        :: else -> failed = true
        fi
#else
        d_step {
            assert(froze[w]);  /* no predecessor's silence is held against it */
            doomed[w] = true;
            seen[w] = KILLED
        }
#ifdef REPLACED_WHEN_KILLED
        if
        :: restarts[w] < MOST_RESTARTS -> restarts[w]++; start(w)
        :: else -> failed = true
        fi
#endif
#endif
#endif
    :: seen[w] == KILLED && dead(w) -> d_step { died(w) }
    :: seen[w] == BACKING_OFF ->
#ifdef SLEEPS_THROUGH_THE_BACK_OFF
        missed = asked;
#endif
        start(w)
    fi
}

#define to_do(w) (dead(w) && seen[w] != FINISHED || seen[w] == WATCHED && stale[w])

proctype parent() {
    start(0);
    start(1);
    do
    :: atomic {
        missed = asked;
        if
        :: asked || failed -> break
        :: !asked && !failed && seen[0] == FINISHED && seen[1] == FINISHED -> break
        :: else
        fi };
        if
        :: to_do(0) || seen[0] == BACKING_OFF -> attend(0)
        :: to_do(1) || seen[1] == BACKING_OFF -> attend(1)
        :: asked
        fi
    od;
    atomic { stopping = true; missed = false };
#ifdef RESTARTS_AFTER_STOP
    if
    :: process[0] == FAILED && restarts[0] < MOST_RESTARTS -> start(0)
    :: else
    fi;
#endif
#ifndef FAILS_AND_LEAVES_THE_REST
#ifndef WAITS_FOR_THE_FROZEN
    if
    :: atomic { alive[0] == 0 && alive[1] == 0 }
    :: d_step { doomed[0] = true; doomed[1] = true }  /* the time to end by themselves is up */
    fi;
#endif
    alive[0] == 0 && alive[1] == 0;
#endif
    atomic {
        assert(alive[0] == 0 && alive[1] == 0);  /* nobody is left behind */
        assert(failed || asked || seen[0] == FINISHED && seen[1] == FINISHED);
        ended = true
    }
}

init {
    atomic {
        run parent();
        if
        :: run user()
        :: true
        fi
    }
}

proctype user() { asked = true }

ltl run_ends { <> ended }
