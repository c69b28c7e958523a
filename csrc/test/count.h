/* What the programs whose instructions are counted share; see count_calls.c. */
#ifndef MC_COUNT_H
#define MC_COUNT_H

#include <signal.h>

#include "check.h"

#define COUNT(name, call)                                                                                    \
    do {                                                                                                     \
        CHECK((call) >= 0); /* touches its memory for the first time */                                      \
        puts(name);                                                                                          \
        fflush(stdout);                                                                                      \
        raise(SIGSTOP);                                                                                      \
        (void)(call);                                                                                        \
        raise(SIGSTOP);                                                                                      \
    } while (0)

#endif
