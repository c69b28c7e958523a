/* What the parent decides of its workers, from a pidfd, a heartbeat and what a worker said before it ended:
 * marlcore/processes/supervisor.py, and the two loops of system.py around it, by hand, rule for rule.
 *
 * An actor, which ends well when it has taken its steps, and a learner, which does when it is told to stop. Each
 * writes a lane, and none asks for its lane's lock here: the parent alone keeps a second writer away. A worker may
 * end well, raise, die, or freeze at any moment; frozen, it may wake up again.
 *
 * Left out, and why:
 * - Time: a frozen worker's heartbeat is stale sooner or later, which covers the longer patience with one that starts
 *   and the parent that was stopped itself; a back-off, however long, ends sooner or later; the time for last
 *   checkpoints may be up at once, which covers a second signal and the quick end of workers that still start.
 * - The window in which failures count: it is as long as the run. A worker that fails only now and then is started
 *   again for ever, on purpose.
 * - A first start that the system refuses: the work is done in this process then, and nobody is supervised.
 * - A process that SIGKILL does not end: it is the kernel's, and the parent leaves it alone in the end. */

#define WORKERS 2
#define ACTOR 0
#define LEARNER 1
#ifndef MOST_RESTARTS
#define MOST_RESTARTS 1 /* of a worker */
#endif

mtype = { NONE, RUNNING, FROZEN, ENDED_WELL, RAISED, DIED };
mtype = { WATCHED, KILLED, BACKING_OFF, FINISHED, GONE };

mtype process[WORKERS] = NONE; /* the kernel's: how its newest process is; an end: its pidfd says so */
bool ready[WORKERS];           /* one of its processes came as far as its first round */
bool doomed[WORKERS];          /* SIGKILL was sent to the newest one, and takes its time */
bool stale[WORKERS];           /* its heartbeat was silent for long, as far as the parent knows */
bool hopeless[WORKERS];        /* it raised unprompted before it was ever ready, and would raise again */
mtype seen[WORKERS] = GONE;    /* what the parent is about with it; GONE: nothing any more */
byte restarts[WORKERS];        /* as the parent counts, those that the system refused too */
bool asked;                    /* SIGINT or SIGTERM came */
bool missed;                   /* it had come when the parent last slept */
bool stopping;                 /* the parent told everybody to stop */
bool standing_down;            /* nobody is started again */
bool failed, ended;            /* a worker failed for good; train() returns */

#define lives(w) (process[w] == RUNNING || process[w] == FROZEN)
#define dead(w) (process[w] == ENDED_WELL || process[w] == RAISED || process[w] == DIED)
#define unfinished(w) (seen[w] != FINISHED && seen[w] != GONE)

/* A worker's processes, of which there is one at a time. SIGKILL takes its time: until then it goes on. */
proctype worker(byte me) {
    bool woke;
end:
    do
    :: d_step { process[me] == RUNNING && !ready[me] -> ready[me] = true }
    :: d_step {  /* done, or told to */
        process[me] == RUNNING && ready[me] && (me == ACTOR || stopping) -> process[me] = ENDED_WELL; woke = false }
    :: d_step {
        process[me] == RUNNING ->
        process[me] = RAISED;
        hopeless[me] = !ready[me] && seen[me] == WATCHED;
        woke = false }
    :: d_step { process[me] == RUNNING || lives(me) && doomed[me] -> process[me] = DIED; woke = false }
    :: atomic {
        process[me] == RUNNING && !woke ->
        process[me] = FROZEN;
        if
        :: woke = true  /* which it never will */
        :: true
        fi
    }
    :: d_step { process[me] == FROZEN && !stale[me] -> stale[me] = true }
    :: d_step { process[me] == FROZEN && !woke -> process[me] = RUNNING; stale[me] = false; woke = true }
    od
}

inline start(w) {
    atomic {
        assert(!lives(w));  /* never two writers on a lane */
        assert(!missed && !failed && !standing_down && (!stopping || w == LEARNER));
        assert(!hopeless[w]);
        process[w] = RUNNING;
        doomed[w] = false;
#ifndef JUDGED_BY_ITS_PREDECESSORS_HEARTBEAT
        stale[w] = false;
#endif
        seen[w] = WATCHED
    }
}

/* It is started again, if it may be. */
inline fell(w) {
    if
    :: standing_down -> seen[w] = GONE
#ifdef RESTARTED_FOR_EVER
    :: !standing_down -> seen[w] = BACKING_OFF
#else
    :: !standing_down && restarts[w] == MOST_RESTARTS -> failed = true; seen[w] = GONE
    :: !standing_down && restarts[w] < MOST_RESTARTS -> restarts[w]++; seen[w] = BACKING_OFF
#endif
    fi
}

inline died(w) {
    if
    :: process[w] == ENDED_WELL ->
#ifdef RESTARTED_THOUGH_DONE
        seen[w] = BACKING_OFF
#else
        seen[w] = FINISHED
#endif
#ifdef TRIED_AGAIN_THOUGH_HOPELESS
    :: process[w] == RAISED || process[w] == DIED -> fell(w)
#else
    :: process[w] == RAISED && seen[w] == WATCHED && !ready[w] -> failed = true; seen[w] = GONE
    :: process[w] == RAISED && !(seen[w] == WATCHED && !ready[w]) || process[w] == DIED -> fell(w)
#endif
    fi
}

/* When its back-off is over. The system may refuse to start a process, and that is a failure of the worker. */
inline start_again(w) {
#ifdef SLEEPS_THROUGH_THE_BACK_OFF
    missed = asked;
#endif
    if
    :: start(w)
#ifdef REFUSALS_DO_NOT_COUNT
    :: true
#else
    :: d_step { fell(w) }
#endif
    fi
}

/* The worker's part in a look. */
inline attend(w) {
    if
    :: (seen[w] == WATCHED || seen[w] == KILLED) && dead(w) -> d_step { died(w) }
#ifdef REPLACED_WHEN_STALE
    :: seen[w] == WATCHED && stale[w] && !dead(w) && !stopping && restarts[w] < MOST_RESTARTS -> restarts[w]++; start(w)
#else
#ifndef NOBODY_KILLS_THE_FROZEN
#ifdef WAITS_FOR_THE_FROZEN
    :: d_step { seen[w] == WATCHED && stale[w] && !dead(w) && !stopping ->
#else
    :: d_step { seen[w] == WATCHED && stale[w] && !dead(w) ->
#endif
        assert(process[w] == FROZEN);  /* no predecessor's silence is held against it */
        doomed[w] = true;
        seen[w] = KILLED }
#endif
#endif
#ifdef REPLACED_WHEN_KILLED
    :: seen[w] == KILLED && !stopping && restarts[w] < MOST_RESTARTS -> restarts[w]++; start(w)
#endif
    :: seen[w] == BACKING_OFF -> start_again(w)
    fi
}

inline stand_down() {
    standing_down = true;
#ifndef RESTARTS_AFTER_STANDING_DOWN
    if
    :: seen[ACTOR] == BACKING_OFF -> seen[ACTOR] = GONE
    :: else
    fi;
    if
    :: seen[LEARNER] == BACKING_OFF -> seen[LEARNER] = GONE
    :: else
    fi
#endif
}

proctype parent() {
    start(ACTOR);
    if
    :: atomic { asked -> missed = true }
    :: start(LEARNER)
    fi;
    do  /* until the actor has taken its steps */
    :: atomic {
        missed = asked;
        if
        :: asked || failed || seen[ACTOR] == FINISHED -> break
        :: else
        fi };
        if
        :: attend(ACTOR)
        :: attend(LEARNER)
        :: asked && !missed
        fi
    od;
    stopping = true;
    do  /* until everybody has ended: a learner that dies in its last checkpoint is started again */
    :: atomic {
        missed = asked;
        if
        :: !unfinished(ACTOR) && !unfinished(LEARNER) -> break
        :: else
        fi;
        if
#ifdef GIVES_THE_LAST_CHECKPOINT_UP
        :: !standing_down -> stand_down()
        :: standing_down
#else
        :: (asked || failed) && !standing_down -> stand_down()
        :: !((asked || failed) && !standing_down)
#endif
        fi };
#ifdef FAILS_AND_LEAVES_THE_REST
        if
        :: failed -> goto over
        :: else
        fi;
#endif
        if
        :: attend(ACTOR)
        :: attend(LEARNER)
        :: asked && !missed
        :: !unfinished(ACTOR) && !unfinished(LEARNER)
#ifndef WAITS_FOR_THE_FROZEN
        :: failed = true; break  /* the time for it is up */
#endif
        fi
    od;
    atomic { doomed[ACTOR] = true; doomed[LEARNER] = true };
    !lives(ACTOR) && !lives(LEARNER);
over:
    atomic {
        assert(!lives(ACTOR) && !lives(LEARNER));  /* nobody is left behind */
        assert(failed || asked || seen[ACTOR] == FINISHED && seen[LEARNER] == FINISHED);
        ended = true
    }
}

init {
    atomic {
        run parent();
        run worker(ACTOR);
        run worker(LEARNER);
        if
        :: run user()
        :: true
        fi
    }
}

proctype user() { asked = true }

ltl run_ends { <> ended }
