/* Saving over an existing file while it is loaded and while everybody may be killed between any two system calls:
 * marlcore/memory/segment.py's replace_file and attach, by hand, a step for each system call.
 *
 * Two savers of one target, each with a file and a name aside of its own, and who loads the target. File 1 is what
 * was saved before. */

#define SAVERS 2
#define FILES 3
#define LOADER 3
#define PROCESSES 3
#ifndef KILLS
#define KILLS 2
#endif

byte target = 1;           /* the file that the name leads to; 0: none */
byte aside[SAVERS + 1];
bool whole[FILES + 1];     /* all of it is written, and on disk */
byte shared[FILES + 1];    /* how many hold its lock so */
bool alone[FILES + 1];     /* one holds it alone */
bool doomed[PROCESSES + 1];
bool over[PROCESSES + 1];

inline close(file, held) {
    d_step {
        if
        :: held -> shared[file]--; held = false
        :: else
        fi
    }
}

/* What another save left aside, if nobody holds it. */
inline sweep(which) {
    atomic { left = aside[which] };
    if
    :: left == 0
    :: else ->
        d_step {
            if
            :: shared[left] == 0 && !alone[left] -> alone[left] = true; had = true
            :: else
            fi
        };
        if
        :: had && aside[which] == left -> aside[which] = 0
        :: else
        fi;
        d_step {
            if
            :: had -> alone[left] = false; had = false
            :: else
            fi;
            left = 0
        }
    fi
}

proctype saver(byte me) {
    byte file, left;
    bool held, had;
    {
        sweep(3 - me);
        file = me + 1;
#ifdef WRITTEN_IN_PLACE
        file = target;
        whole[file] = false;
        whole[file] = true;
        goto finished;
#endif
#ifdef NAMED_BEFORE_WRITTEN
        d_step { shared[file] = 1; held = true };
        aside[me] = file;
        target = file;
        aside[me] = 0;
        whole[file] = true;
        goto finished;
#endif
        whole[file] = true;
#ifndef ASIDE_WITHOUT_LOCK
        d_step { shared[file] = 1; held = true };  /* nobody else can see the file */
#endif
#ifdef TARGET_REMOVED_FIRST
        target = 0;
        target = file;
#else
        aside[me] = file;
        atomic {
            assert(aside[me] == file);  /* nobody swept it away */
            target = aside[me];
            aside[me] = 0
        };
#endif
finished:
        skip
    } unless { doomed[me] };
    close(file, held);
    d_step {
        if
        :: had -> alone[left] = false; had = false
        :: else
        fi;
        file = 0;
        left = 0;
        over[me] = true
    }
}

proctype loader() {
    byte file;
    bool held, there;
    {
        do
        :: atomic { file = target; assert(file) };  /* there always is a file to load */
            d_step {
                if
                :: !alone[file] -> shared[file]++; held = true; there = target == file
                :: else
                fi
            };
            if
            :: !held -> file = 0  /* a sweeper looks at what had a name aside just before: once more */
#ifndef LOAD_WITHOUT_SECOND_LOOK
            :: held && target != file -> close(file, held)
            :: held && target == file -> atomic { there = true; break }
#else
            :: held -> break
#endif
            fi
        od;
        assert(held && whole[file] && there)  /* the name led to it while it was held */
    } unless { doomed[LOADER] };
    close(file, held);
    d_step { over[LOADER] = true; file = 0; there = false }
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
        :: else
        fi
    }
    od
}

init {
    byte left;
    bool had;
    atomic {
        whole[1] = true;
        run saver(1);
        run saver(2);
        run loader();
        run killer()
    };
    over[1] && over[2] && over[3];
    assert(target && whole[target]);  /* the old one or a new one, all of it */
    sweep(1);
    sweep(2);
    assert(aside[1] == 0 && aside[2] == 0)  /* the next save clears away what was left */
}
