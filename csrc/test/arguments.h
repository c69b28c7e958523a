/* The arguments of the programs in this folder: --name NUMBER, or --name alone. */
#ifndef MC_TEST_ARGUMENTS_H
#define MC_TEST_ARGUMENTS_H

#include <errno.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

struct argument {
    const char *name;
    uint64_t *number; /* or NULL */
    int *flag;
};

/* 0, or -EINVAL for a name that is not there and for one that lacks its number. */
static inline int read_arguments(int argc, char **argv, const struct argument *known, size_t count) {
    for (int i = 1; i < argc; i++) {
        size_t k = 0;
        while (k < count && strcmp(argv[i], known[k].name))
            k++;
        if (k == count || (known[k].number && i + 1 == argc))
            return -EINVAL;
        if (known[k].number)
            *known[k].number = strtoull(argv[++i], NULL, 10);
        else
            *known[k].flag = 1;
    }
    return 0;
}

#endif
