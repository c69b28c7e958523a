/* The kernels, once for each level of processors: dense.c includes this text with LEVEL(name), the name at
 * that level; KERNEL, the function attribute; LANES, the floats of a vector; and ROWS times VECTORS, the
 * block in registers. */

typedef float LEVEL(vec) __attribute__((vector_size(4 * LANES)));
typedef float LEVEL(loose) __attribute__((vector_size(4 * LANES), aligned(4), may_alias)); /* in memory */
typedef int32_t LEVEL(ints) __attribute__((vector_size(4 * LANES)));
#define vec LEVEL(vec)
#define loose LEVEL(loose)
#define ints LEVEL(ints)
#define INLINE KERNEL static inline __attribute__((always_inline))

INLINE vec LEVEL(load)(const float *x) { return *(const loose *)x; }
INLINE vec LEVEL(all)(float x) { return x - (vec){0}; }
/* Where the mask is -1 the first, where it is 0 the second. */
INLINE vec LEVEL(select)(ints mask, vec first, vec second) {
    return (vec)((mask & (ints)first) | (~mask & (ints)second));
}

/* exp(x) of x in [0, 20] or NaN: a power of 2, times a polynomial on [-log(2)/2, log(2)/2]. */
INLINE vec LEVEL(exp)(vec x) {
    vec shifted = x * 1.44269504f + 12582912.0f; /* 1.5 2^23: the sum's low bits are the rounded power */
    vec power = shifted - 12582912.0f;
    vec r = x - power * 0.693145752f - power * 1.42860677e-6f;
    vec q = (((0.00139015249f * r + 0.00836374052f) * r + 0.0416668616f) * r + 0.166665733f) * r + 0.5f;
    return (r * r * q + r + 1.0f) * (vec)(((ints)shifted + 127) << 23);
}

INLINE vec LEVEL(tanh)(vec x) {
    vec size = (vec)((ints)x & 0x7fffffff), square = x * x;
    vec t = (((-0.00604539085f * square + 0.0209615119f) * square - 0.0538433082f) * square + 0.133327186f) *
                square -
            0.333333284f;
    vec near = x * square * t + x;
    vec twice = LEVEL(select)(size > 10.0f, LEVEL(all)(20.0f), 2.0f * size); /* NaN stays */
    vec far = 1.0f - 2.0f / (LEVEL(exp)(twice) + 1.0f);
    far = (vec)((ints)far | ((ints)x & (int32_t)0x80000000));
    return LEVEL(select)(size < 0.625f, near, far);
}

INLINE vec LEVEL(finish)(vec y, const struct mc_product *p, int64_t r, int64_t c) {
    if (p->slope_of) {
        vec h = LEVEL(load)(p->slope_of + r * p->slope_row + c);
        if (p->activation == MC_RELU)
            return (vec)((ints)y & (h > 0.0f));
        return p->activation == MC_TANH ? y * (1.0f - h * h) : y;
    }
    if (p->activation == MC_RELU)
        return LEVEL(select)(y <= 0.0f, (vec){0}, y); /* NaN stays */
    return p->activation == MC_TANH ? LEVEL(tanh)(y) : y;
}

INLINE void LEVEL(store)(vec y, const struct mc_product *p, int64_t r, int64_t c) {
    float *to = p->y + r * p->y_row + c;
    if (p->whole || c + LANES <= p->columns)
        *(loose *)to = y;
    else
        memcpy(to, &y, (size_t)(p->columns - c) * sizeof *to);
}

/* Some rows and vectors of y; their numbers are constants of each call, so that the sums stay in registers.
 */
INLINE void LEVEL(block)(const struct mc_product *p, int64_t r, int64_t c, const int rows,
                         const int vectors) {
    vec sum[8][VECTORS];
    for (int k = 0; k < rows; k++)
        for (int v = 0; v < vectors; v++)
            sum[k][v] = p->bias ? LEVEL(load)(p->bias + c + v * LANES) : (vec){0};
    const float *a = p->a + r * p->a_row, *b = p->b + c;
    for (int64_t i = 0; i < p->inner; i++, a += p->a_inner, b += p->b_row)
        for (int k = 0; k < rows; k++)
            for (int v = 0; v < vectors; v++)
                sum[k][v] += a[k * p->a_row] * LEVEL(load)(b + v * LANES);
    for (int k = 0; k < rows; k++)
        for (int v = 0; v < vectors; v++)
            LEVEL(store)(LEVEL(finish)(sum[k][v], p, r + k, c + v * LANES), p, r + k, c + v * LANES);
}

/* All rows of some vectors, `most` rows at once: enough sums that none waits for another. */
INLINE void LEVEL(rows)(const struct mc_product *p, int64_t c, const int most, const int vectors) {
    int64_t r = 0;
    for (; r + most <= p->rows; r += most)
        LEVEL(block)(p, r, c, most, vectors);
    for (; r + 2 <= p->rows; r += 2)
        LEVEL(block)(p, r, c, 2, vectors);
    if (r < p->rows)
        LEVEL(block)(p, r, c, 1, vectors);
}

KERNEL static void LEVEL(multiply)(const struct mc_product *p) {
    int64_t c = 0;
    for (; c + (VECTORS - 1) * LANES < p->columns; c += VECTORS * LANES)
        LEVEL(rows)(p, c, 4, VECTORS);
    for (; c < p->columns; c += LANES)
        LEVEL(rows)(p, c, 8, 1);
}

KERNEL static void LEVEL(adam)(const struct mc_tensor *tensor, const struct mc_descent *descent, float rate,
                               float root, float scale) {
    float *restrict weight = tensor->weight, *restrict mean = tensor->mean, *restrict square = tensor->square;
    const float *restrict gradient = tensor->gradient;
    const float first = (float)descent->beta1, second = (float)descent->beta2,
                epsilon = (float)descent->epsilon;
    for (int64_t i = 0; i < tensor->size; i++) {
        float g = gradient[i] * scale;
        mean[i] = first * mean[i] + (1.0f - first) * g;
        square[i] = second * square[i] + (1.0f - second) * g * g;
        weight[i] -= rate * mean[i] / (sqrtf(square[i]) * root + epsilon);
    }
}

KERNEL static void LEVEL(move)(const struct mc_tensor *tensor, float share) {
    float *restrict target = tensor->target;
    const float *restrict weight = tensor->weight;
    for (int64_t i = 0; i < tensor->size; i++)
        target[i] = share < 0.5f ? target[i] + share * (weight[i] - target[i])
                                 : weight[i] - (weight[i] - target[i]) * (1.0f - share);
}

/* The sum of squares: of 16 lanes each, whatever LANES is, and of each 4,096 numbers apart. */
KERNEL static double LEVEL(squares)(const float *x, int64_t n) {
    double total = 0.0;
    while (n > 0) {
        vec sum[16 / LANES] = {{0}};
        int64_t i = 0, part = n < 4096 ? n : 4096;
        for (; i + 16 <= part; i += 16)
            for (int v = 0; v < 16 / LANES; v++)
                sum[v] += LEVEL(load)(x + i + v * LANES) * LEVEL(load)(x + i + v * LANES);
        for (int k = 0; k < 16; k++)
            total += (double)sum[k / LANES][k % LANES];
        for (; i < part; i++)
            total += (double)(x[i] * x[i]);
        x += part;
        n -= part;
    }
    return total;
}

/* cos(pi j t) for j from 0 to count - 1: sin(pi (1/2 - |x|)) by a polynomial, where x is j t to the nearest
 * even. */
KERNEL static void LEVEL(cosines)(int64_t rows, int64_t count, const float *fractions, float *y) {
    vec step;
    for (int k = 0; k < LANES; k++)
        step[k] = (float)k;
    for (int64_t r = 0; r < rows; r++, y += mc_padded(count))
        for (int64_t j = 0; j < count; j += LANES) {
            vec x = (step + (float)j) * fractions[r];
            vec halves = x * 0.5f + 12582912.0f;
            x -= 2.0f * (halves - 12582912.0f);
            vec s = 0.5f - (vec)((ints)x & 0x7fffffff), q = s * s;
            vec p =
                (((0.0775603876f * q - 0.598242104f) * q + 2.55006981f) * q - 5.16770983f) * q + 3.14159274f;
            *(loose *)(y + j) = s * p;
        }
}

static const struct mc_dense LEVEL(kernels) = {LEVEL(multiply), LEVEL(adam), LEVEL(move), LEVEL(squares),
                                               LEVEL(cosines)};

#undef vec
#undef loose
#undef ints
#undef INLINE
#undef LEVEL
#undef KERNEL
#undef LANES
#undef VECTORS
