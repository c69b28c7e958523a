/* Segments in /dev/shm while everybody may be killed between any two system calls: marlcore/memory/segment.py's create, attach,
 * unlink and sweep, by hand, a step for each system call.
 *
 * One name, which all creators use, as if their nonces were the same. A file is a number; its byte 0 is locked shared
 * by those who use it, alone by who sweeps it. */

#define FILES 2
#define ATTACHER 3
#define SWEEPERS 4 /* and 5 */
#define PROCESSES 5
#ifndef KILLS
#define KILLS 1
#endif

byte name;                 /* the file that the name leads to; 0: none */
bool header[FILES + 1];    /* it is written */
byte shared[FILES + 1];    /* how many hold the lock so */
bool alone[FILES + 1];     /* one holds it alone */
byte users[FILES + 1];     /* processes that count on the file */
bool swept[FILES + 1];
bool doomed[PROCESSES + 1];
bool over[PROCESSES + 1];
bool created, looked;      /* alike processes begin in the order of their numbers, which loses nothing */

inline share(file, held) {
    d_step {
        if
        :: !alone[file] -> shared[file]++; held = true
        :: else
        fi
    }
}

inline drop(file, held) {
    d_step {
        if
        :: held -> shared[file]--; held = false
        :: else
        fi
    }
}

inline unlink(file, sweeping) {
    d_step {
        if
        :: name && sweeping -> assert(users[name] == 0); swept[name] = true
        :: name && !sweeping -> assert(name == file)
        :: else
        fi;
        name = 0
    }
}

/* What the kernel does for a process that ends, however it ends. */
inline give_back(file, held) {
    d_step {
        if
        :: file && used -> users[file]--; used = false
        :: else
        fi
    };
#ifdef LOCK_OUTLIVES_ITS_HOLDER
    d_step {
        if
        :: doomed[me]
        :: else ->
            if
            :: held -> shared[file]--; held = false
            :: else
            fi
        fi
    };
#else
    drop(file, held);
#endif
    d_step { over[me] = true; file = 0 }
}

/* File and process have the same number. */
proctype creator(byte me) {
    byte file;
    bool held, used;
    {
        me == 1 || created || over[1];
#ifdef NAME_BEFORE_HEADER
        atomic { name == 0 -> name = me; created = true };
        header[me] = true;
        share(me, held);
#else
#ifdef NAME_BEFORE_LOCK
        header[me] = true;
        if
        :: atomic { name == 0 -> name = me; created = true }
        :: else -> goto finished
        fi;
        share(me, held);
#else
        d_step { header[me] = true; shared[me] = 1; held = true };  /* nobody else can see the file */
        if
        :: atomic { name == 0 -> name = me; created = true }  /* linkat */
        :: else -> goto closing                               /* the name is taken */
        fi;
#endif
#endif
        d_step { used = true; users[me]++ };
        d_step {
            assert(name == me);  /* nobody else removes what its creator has */
            used = false;
            users[me]--
        };
closing:
#ifdef CLOSED_BEFORE_UNLINKED
        drop(me, held);
#endif
        if
#ifdef UNLINKED_WITHOUT_A_LOOK
        :: true -> unlink(me, false)
#else
        :: name == me -> unlink(me, false)
        :: else
#endif
        fi;
finished:
        skip
    } unless { doomed[me] };
    file = me;
    give_back(file, held)
}

proctype attacher(byte me) {
    byte file;
    bool held, used;
    {
        do
        :: atomic { name == 0 -> break }  /* no such segment */
        :: atomic { name != 0 -> file = name };
#ifdef ATTACH_WITHOUT_LOCK
            skip;
#else
            share(file, held);
#endif
            if
#ifndef ATTACH_WITHOUT_LOCK
            :: !held -> file = 0  /* a sweeper looks at it: the name decides */
            :: held ->
#else
            :: true ->
#endif
#ifndef ATTACH_WITHOUT_SECOND_LOOK
                if
                :: name != file -> drop(file, held); file = 0
                :: atomic { name == file -> used = true; users[file]++ }
                fi
#else
                d_step { used = true; users[file]++ }
#endif
            fi;
            if
            :: used ->
                atomic { assert(header[file] && !swept[file]) -> break }
            :: else
            fi
        od
    } unless { doomed[me] };
    give_back(file, held)
}

inline sweep(file, had) {
    atomic { file = name; looked = true };
    if
    :: file == 0
    :: else ->
        d_step {
            if
#ifdef SWEEP_WITHOUT_LOCK
            :: true -> had = true
#else
            :: shared[file] == 0 && !alone[file] -> had = true;
#ifndef SWEEP_ASKS_INSTEAD_OF_LOCKING
                alone[file] = true
#endif
#endif
            :: else
            fi
        };
        if
#ifdef SWEEP_WITHOUT_SECOND_LOOK
        :: had -> unlink(file, true)
#else
        :: had && name == file -> unlink(file, true)
#endif
        :: else
        fi
    fi
}

proctype sweeper(byte me) {
    byte file;
    bool had;
    {
        me == SWEEPERS || looked || over[SWEEPERS];
        sweep(file, had)
    } unless { doomed[me] };
    d_step {
        if
        :: had -> alone[file] = false
        :: else
        fi;
        over[me] = true; file = 0
    }
}

proctype killer() {
    byte kills;
end:
    do
    :: atomic {
        kills < KILLS ->
        kills++;
        if
        :: !over[1] && !doomed[1] -> doomed[1] = true
        :: !over[2] && !doomed[2] -> doomed[2] = true
        :: !over[3] && !doomed[3] -> doomed[3] = true
        :: !over[4] && !doomed[4] -> doomed[4] = true
        :: !over[5] && !doomed[5] -> doomed[5] = true
        :: else
        fi
    }
    od
}

init {
    byte file;
    bool had;
    atomic {
        run creator(1);
        run creator(2);
        run attacher(ATTACHER);
        run sweeper(SWEEPERS);
#ifdef ONE_SWEEPER
        over[SWEEPERS + 1] = true;
#else
        run sweeper(SWEEPERS + 1);
#endif
        run killer()
    };
    over[1] && over[2] && over[3] && over[4] && over[5];
    sweep(file, had);
    assert(name == 0)  /* whatever was left behind can be swept */
}
