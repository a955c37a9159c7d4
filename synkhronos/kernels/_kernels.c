/* Copy and reduce arrays, bypassing the caches if the arrays are large, and convert numbers to and from bfloat16;
 * called by `copy.py`, `reduce.py` and `encoding.py`.
 *
 * Arguments are buffers, never addresses, and no call accesses memory outside its buffers. A new `Pieces` checks the
 * lengths, dtypes, contiguity, alignment and writability of its buffers, and keeps references to them.
 *
 * NumPy's stores fetch a cache line before they overwrite it, so reducing two arrays into two targets moves six times
 * the size of one array. Non-temporal stores bypass the caches and avoid the fetch, so only four times that size moves.
 *
 * The module uses the limited API of Python 3.11, so one build works with Python 3.11 and later; setup.py lists the
 * exceptions. Threads share only `Pieces` objects, which are immutable.
 *
 * Results are bit-identical to `reductions.combine_pieces`, because the same operations run in the same order, without
 * contraction to fused multiply-adds. Only the sign of a weighted mean that is 0 may differ, as it does between
 * versions of NumPy.
 */
#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <stdint.h>
#include <string.h>

#if defined(__SSE2__)
#include <emmintrin.h>
#endif

#define CHUNK 4096        /* bytes of each array processed at a time: a few chunks fit the first-level cache */
#define STREAM_CHUNK 1024 /* for non-temporal stores: smaller, so that loads and stores alternate (measured) */
/* Minimum size in bytes of values that are reduced directly into the first target. For smaller arrays, loads would wait
 * for stores to the same offset in another page. */
#define DIRECT (1 << 17)
#define MAX_PARTS 64      /* maximum number of arrays reduced together */
#define ROWS_AHEAD 8      /* distance of the selected row that is prefetched while a row is copied */
#define PREFETCH_STEP 1024 /* bytes between prefetched lines; the processor itself fetches the lines that follow */

/* Copy; with `stream`, use non-temporal stores if the machine has them. */
static void
store(char *target, const char *source, size_t nbytes, int stream)
{
#if defined(__SSE2__)
    if (stream && nbytes >= 64) {
        size_t head = (-(uintptr_t)target) & 15;
        memcpy(target, source, head);
        target += head, source += head, nbytes -= head;
        for (; nbytes >= 64; target += 64, source += 64, nbytes -= 64) {
            __m128i a = _mm_loadu_si128((const __m128i *)source);
            __m128i b = _mm_loadu_si128((const __m128i *)source + 1);
            __m128i c = _mm_loadu_si128((const __m128i *)source + 2);
            __m128i d = _mm_loadu_si128((const __m128i *)source + 3);
            _mm_stream_si128((__m128i *)target, a);
            _mm_stream_si128((__m128i *)target + 1, b);
            _mm_stream_si128((__m128i *)target + 2, c);
            _mm_stream_si128((__m128i *)target + 3, d);
        }
    }
#endif
    memcpy(target, source, nbytes);
}

/* Make non-temporal stores visible to the other ranks before they are notified. */
static void
finish(int stream)
{
#if defined(__SSE2__)
    if (stream)
        _mm_sfence();
#endif
}

/* Also compile for wider vectors; the loader selects the version for this processor. */
#if defined(__x86_64__) && defined(__GLIBC__) && defined(__GNUC__) && !defined(__clang__)
#define FOR_EVERY_WIDTH __attribute__((target_clones("avx512f", "avx2", "default")))
#else
#define FOR_EVERY_WIDTH
#endif

enum { SUM, MIDPOINT, MEAN };

/* NumPy's minimum and maximum: nan takes precedence. Of 0 and -0, the second argument wins, as is usual in NumPy. */
#define LEAST(a, b) ((a) < (b) || (a) != (a) ? (a) : (b))
#define GREATEST(a, b) ((a) > (b) || (a) != (a) ? (a) : (b))

/* Reduce n elements (at most a chunk) of all parts into `out`. */
#define DEFINE_REDUCE(T, NAME, MASK, MAX)                                                                              \
    FOR_EVERY_WIDTH static void                                                                                        \
    NAME(int op, const T *const *parts, int n_parts, const T *weights, T total, T *restrict out, size_t n)             \
    {                                                                                                                  \
        const T *first = parts[0];                                                                                     \
        if (n_parts == 1) {                                                                                            \
            memcpy(out, first, n * sizeof(T));                                                                         \
        } else if (op == SUM) {                                                                                        \
            const T *second = parts[1];                                                                                \
            for (size_t i = 0; i < n; i++)                                                                             \
                out[i] = first[i] + second[i];                                                                         \
            for (int p = 2; p < n_parts; p++) {                                                                        \
                const T *part = parts[p];                                                                              \
                for (size_t i = 0; i < n; i++)                                                                         \
                    out[i] += part[i];                                                                                 \
            }                                                                                                          \
        } else if (op == MIDPOINT) {                                                                                   \
            const T *second = parts[1];                                                                                \
            MASK is_inf = 0;                                                                                           \
            for (size_t i = 0; i < n; i++) {                                                                           \
                T half = (first[i] + second[i]) * (T)0.5;                                                              \
                is_inf |= (MASK)(half > MAX) | (MASK)(half < -MAX);                                                    \
                out[i] = half;                                                                                         \
            }                                                                                                          \
            for (size_t i = 0; is_inf && i < n; i++) /* a sum has overflowed; the other loop has no branch */          \
                if (out[i] > MAX || out[i] < -MAX)                                                                     \
                    out[i] = first[i] * (T)0.5 + second[i] * (T)0.5;                                                   \
        } else {                                                                                                       \
            T low[CHUNK / sizeof(T)], high[CHUNK / sizeof(T)];                                                         \
            for (size_t i = 0; i < n; i++) {                                                                           \
                low[i] = high[i] = first[i];                                                                           \
                out[i] = first[i] * weights[0];                                                                        \
            }                                                                                                          \
            for (int p = 1; p < n_parts; p++) {                                                                        \
                const T *part = parts[p], weight = weights[p];                                                         \
                for (size_t i = 0; i < n; i++) {                                                                       \
                    out[i] += part[i] * weight;                                                                        \
                    low[i] = LEAST(low[i], part[i]);                                                                   \
                    high[i] = GREATEST(high[i], part[i]);                                                              \
                }                                                                                                      \
            }                                                                                                          \
            for (size_t i = 0; i < n; i++) {                                                                           \
                T mean = out[i] / total;                                                                               \
                mean = GREATEST(mean, low[i]);                                                                         \
                out[i] = LEAST(mean, high[i]);                                                                         \
            }                                                                                                          \
        }                                                                                                              \
    }

DEFINE_REDUCE(float, reduce_float, uint32_t, 3.4028234663852886e38f)
DEFINE_REDUCE(double, reduce_double, uint64_t, 1.7976931348623157e308)

/* Return None with a new reference. Since Python 3.12 None is immortal, and Py_RETURN_NONE adds no reference. The same
 * build also runs with Python 3.11, where None is not immortal. */
static PyObject *
none(void)
{
    Py_INCREF(Py_None);
    return Py_None;
}

/* Arrays to reduce together: of one dtype, with equal numbers of parts and of targets in all pieces.
 *
 *     piece 0:   part 0, part 1, ..., target 0, target 1, ...     all of one length
 *     piece 1:   part 0, part 1, ..., target 0, target 1, ...     all of one length
 */
typedef struct {
    PyObject_HEAD
    Py_ssize_t n_pieces, n_parts, n_targets;
    Py_ssize_t n_views; /* number acquired so far, to be released at the end */
    Py_buffer *views;   /* piece by piece */
    int is_double;
} Pieces;

static void
pieces_dealloc(Pieces *self)
{
    for (Py_ssize_t i = 0; i < self->n_views; i++)
        PyBuffer_Release(&self->views[i]);
    PyMem_Free(self->views);
    PyTypeObject *type = Py_TYPE((PyObject *)self);
    PyObject_Free(self);
    Py_DECREF(type); /* an instance of a heap type owns a reference to its type */
}

/* Acquire the buffer of a part or a target as the next element of `views`; return whether it is suitable. */
static int
take_view(Pieces *self, PyObject *object, int writable, Py_ssize_t nbytes)
{
    Py_buffer *view = &self->views[self->n_views];
    if (PyObject_GetBuffer(object, view, PyBUF_C_CONTIGUOUS | PyBUF_FORMAT | (writable ? PyBUF_WRITABLE : 0)) < 0)
        return 0;
    self->n_views++;
    const char *wanted = self->is_double ? "d" : "f";
    size_t itemsize = self->is_double ? sizeof(double) : sizeof(float);
    if (view->format == NULL || strcmp(view->format, wanted) || view->itemsize != (Py_ssize_t)itemsize) {
        PyErr_Format(PyExc_ValueError, "expected a buffer of format '%s', got '%s'", wanted,
                     view->format == NULL ? "B" : view->format);
        return 0;
    }
    if (nbytes >= 0 && view->len != nbytes) {
        PyErr_Format(PyExc_ValueError, "the buffers of a piece have %zd and %zd bytes", nbytes, view->len);
        return 0;
    }
    if (view->len && (uintptr_t)view->buf % itemsize) {
        PyErr_SetString(PyExc_ValueError, "a buffer is not aligned to its elements");
        return 0;
    }
    return 1;
}

/* Acquire the buffers of one piece, (parts, targets); return whether all are suitable. */
static int
take_piece(Pieces *self, PyObject *given, Py_ssize_t n_pieces)
{
    int ok = 0;
    PyObject *pair = PySequence_Tuple(given), *parts = NULL, *targets = NULL;
    if (pair == NULL)
        return 0;
    if (PyTuple_Size(pair) != 2) {
        PyErr_SetString(PyExc_ValueError, "a piece is not a pair of parts and targets");
        goto end;
    }
    /* Use tuples, which code that runs during the loop cannot change. */
    parts = PySequence_Tuple(PyTuple_GetItem(pair, 0));
    targets = parts == NULL ? NULL : PySequence_Tuple(PyTuple_GetItem(pair, 1));
    if (targets == NULL)
        goto end;
    Py_ssize_t n_parts = PyTuple_Size(parts), n_targets = PyTuple_Size(targets);
    if (self->views == NULL) { /* the first piece */
        if (n_parts < 1 || n_parts > MAX_PARTS || n_targets < 1) {
            PyErr_Format(PyExc_ValueError, "expected 1 to %d parts and at least 1 target, got %zd and %zd", MAX_PARTS,
                         n_parts, n_targets);
            goto end;
        }
        self->n_parts = n_parts, self->n_targets = n_targets;
        if (n_targets > PY_SSIZE_T_MAX / n_pieces - n_parts) {
            PyErr_NoMemory();
            goto end;
        }
        self->views = PyMem_New(Py_buffer, n_pieces * (n_parts + n_targets));
        if (self->views == NULL) {
            PyErr_NoMemory();
            goto end;
        }
    }
    if (n_parts != self->n_parts || n_targets != self->n_targets) {
        PyErr_SetString(PyExc_ValueError, "the pieces have different numbers of parts or targets");
        goto end;
    }
    Py_ssize_t nbytes = -1;
    for (Py_ssize_t i = 0; i < n_parts + n_targets; i++) {
        PyObject *object = i < n_parts ? PyTuple_GetItem(parts, i) : PyTuple_GetItem(targets, i - n_parts);
        if (!take_view(self, object, i >= n_parts, nbytes))
            goto end;
        nbytes = self->views[self->n_views - 1].len;
    }
    ok = 1;
end:
    Py_DECREF(pair);
    Py_XDECREF(parts);
    Py_XDECREF(targets);
    return ok;
}

PyDoc_STRVAR(pieces_doc,
"Pieces(pieces, typecode)\n--\n\n"
"Arrays to reduce, checked once and then reduced any number of times.\n\n"
"Parameters\n----------\n"
"pieces : sequence of (parts, targets)\n"
"    Both are sequences of buffers: C-contiguous, aligned, all of one length within a piece; targets are writable.\n"
"    All pieces have the same number of parts (at most 64) and of targets.\n"
"typecode : 'f' or 'd'\n"
"    Type of the elements.");

static PyObject *
pieces_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    PyObject *given;
    int typecode;
    if (kwargs != NULL && PyDict_Size(kwargs) > 0) {
        PyErr_SetString(PyExc_TypeError, "Pieces takes no keyword arguments");
        return NULL;
    }
    if (!PyArg_ParseTuple(args, "OC", &given, &typecode))
        return NULL;
    if (typecode != 'f' && typecode != 'd') {
        PyErr_SetString(PyExc_ValueError, "typecode is neither 'f' nor 'd'");
        return NULL;
    }
    PyObject *pieces = PySequence_Tuple(given);
    if (pieces == NULL)
        return NULL;
    Pieces *self = (Pieces *)PyType_GenericAlloc(type, 0); /* all zero */
    if (self == NULL)
        goto fail;
    self->is_double = typecode == 'd';
    Py_ssize_t n_pieces = PyTuple_Size(pieces);
    for (Py_ssize_t i = 0; i < n_pieces; i++)
        if (!take_piece(self, PyTuple_GetItem(pieces, i), n_pieces))
            goto fail;
    self->n_pieces = n_pieces; /* set last, so that an incomplete object reduces nothing */
    Py_DECREF(pieces);
    return (PyObject *)self;
fail:
    Py_DECREF(pieces);
    Py_XDECREF((PyObject *)self);
    return NULL;
}

PyDoc_STRVAR(reduce_doc,
"reduce(op, chosen, weights, total, stream)\n--\n\n"
"Reduce all pieces, each into its targets.\n\n"
"Parameters\n----------\n"
"op : int\n"
"    0: the sum of the parts, from left to right. 1: the mean of two parts. 2: the weighted mean.\n"
"chosen : sequence of int\n"
"    Indices of the parts to reduce.\n"
"weights : sequence of float\n"
"    Weights of these parts, for op 2.\n"
"total : float\n"
"    Divisor of the weighted sum.\n"
"stream : bool\n"
"    Whether to use non-temporal stores.");

static PyObject *
pieces_reduce(Pieces *self, PyObject *args)
{
    int op, stream, ok = 0;
    double total, weights[MAX_PARTS];
    float narrow[MAX_PARTS];
    Py_ssize_t chosen[MAX_PARTS];
    PyObject *chosen_given, *weights_given, *indices = NULL, *numbers = NULL;
    if (!PyArg_ParseTuple(args, "iOOdp", &op, &chosen_given, &weights_given, &total, &stream))
        return NULL;
    if (self->n_pieces == 0)
        return none();
    indices = PySequence_Tuple(chosen_given);
    numbers = indices == NULL ? NULL : PySequence_Tuple(weights_given);
    if (numbers == NULL)
        goto end;
    Py_ssize_t n_chosen = PyTuple_Size(indices), n_weights = PyTuple_Size(numbers);
    if (n_chosen < 1 || n_chosen > MAX_PARTS || op < SUM || op > MEAN || (op == MIDPOINT && n_chosen != 2) ||
        n_weights != (op == MEAN ? n_chosen : 0)) {
        PyErr_SetString(PyExc_ValueError, "op, chosen and weights do not match");
        goto end;
    }
    for (Py_ssize_t p = 0; p < n_chosen; p++) {
        chosen[p] = PyNumber_AsSsize_t(PyTuple_GetItem(indices, p), PyExc_OverflowError);
        if (chosen[p] == -1 && PyErr_Occurred())
            goto end;
        if (chosen[p] < 0 || chosen[p] >= self->n_parts) {
            PyErr_Format(PyExc_ValueError, "part %zd is out of range for %zd parts", chosen[p], self->n_parts);
            goto end;
        }
    }
    for (Py_ssize_t p = 0; p < n_weights; p++) {
        weights[p] = PyFloat_AsDouble(PyTuple_GetItem(numbers, p));
        if (weights[p] == -1 && PyErr_Occurred())
            goto end;
        narrow[p] = (float)weights[p];
    }
    Py_BEGIN_ALLOW_THREADS
    for (Py_ssize_t piece = 0; piece < self->n_pieces; piece++) {
        const Py_buffer *of_parts = self->views + piece * (self->n_parts + self->n_targets);
        const Py_buffer *of_targets = of_parts + self->n_parts;
        size_t nbytes = (size_t)of_parts->len, chunk = stream ? STREAM_CHUNK : CHUNK;
        int direct = !stream && nbytes >= DIRECT; /* reduce into the first target */
        for (size_t at = 0; at < nbytes; at += chunk) {
            size_t some = nbytes - at < chunk ? nbytes - at : chunk;
            union { float f[CHUNK / sizeof(float)]; double d[CHUNK / sizeof(double)]; } memory;
            void *out = direct ? (char *)of_targets[0].buf + at : (void *)&memory;
            const void *parts[MAX_PARTS];
            for (Py_ssize_t p = 0; p < n_chosen; p++)
                parts[p] = (const char *)of_parts[chosen[p]].buf + at;
            if (self->is_double)
                reduce_double(op, (const double *const *)parts, (int)n_chosen, weights, total, out,
                              some / sizeof(double));
            else
                reduce_float(op, (const float *const *)parts, (int)n_chosen, narrow, (float)total, out,
                             some / sizeof(float));
            for (Py_ssize_t i = direct; i < self->n_targets; i++)
                store((char *)of_targets[i].buf + at, out, some, stream);
        }
    }
    finish(stream);
    Py_END_ALLOW_THREADS
    ok = 1;
end:
    Py_XDECREF(indices);
    Py_XDECREF(numbers);
    if (!ok)
        return NULL;
    return none();
}

static PyMethodDef pieces_methods[] = {
    {"reduce", (PyCFunction)pieces_reduce, METH_VARARGS, reduce_doc},
    {NULL, NULL, 0, NULL},
};

static PyType_Slot pieces_slots[] = {
    {Py_tp_dealloc, pieces_dealloc},
    {Py_tp_doc, (void *)pieces_doc},
    {Py_tp_methods, pieces_methods},
    {Py_tp_new, pieces_new},
    {0, NULL},
};

static PyType_Spec pieces_spec = {
    .name = "synkhronos.kernels._kernels.Pieces",
    .basicsize = sizeof(Pieces),
    .flags = Py_TPFLAGS_DEFAULT,
    .slots = pieces_slots,
};

PyDoc_STRVAR(copy_doc,
"copy(target, source)\n--\n\n"
"Copy one contiguous buffer into another of the same size, with non-temporal stores.");

static PyObject *
copy(PyObject *module, PyObject *args)
{
    Py_buffer target, source;
    if (!PyArg_ParseTuple(args, "w*y*", &target, &source))
        return NULL;
    int same = target.len == source.len;
    if (same) {
        Py_BEGIN_ALLOW_THREADS
        store(target.buf, source.buf, (size_t)target.len, 1);
        finish(1);
        Py_END_ALLOW_THREADS
    } else {
        PyErr_Format(PyExc_ValueError, "the buffers have %zd and %zd bytes", target.len, source.len);
    }
    PyBuffer_Release(&target);
    PyBuffer_Release(&source);
    if (!same)
        return NULL;
    return none();
}

PyDoc_STRVAR(take_doc,
"take(target, source, indices)\n--\n\n"
"Copy rows of one contiguous buffer into another; the indices are aligned integers of type numpy.intp.\n\n"
"The rows that follow are prefetched, because a processor predicts only consecutive addresses.");

static PyObject *
take(PyObject *module, PyObject *args)
{
    Py_buffer target, source, indices;
    if (!PyArg_ParseTuple(args, "w*y*y*", &target, &source, &indices))
        return NULL;
    size_t n = (size_t)indices.len / sizeof(size_t), row = n ? (size_t)target.len / n : 0;
    int fits = (size_t)indices.len == n * sizeof(size_t) && (size_t)target.len == n * row &&
               (row == 0 || (size_t)source.len % row == 0) && (uintptr_t)indices.buf % sizeof(size_t) == 0;
    size_t n_rows = fits && row ? (size_t)source.len / row : 0, done = 0;
    const volatile size_t *of_rows = indices.buf; /* read once each, because other processes may change them */
    if (n_rows) {
        Py_BEGIN_ALLOW_THREADS
        for (; done < n; done++) {
            if (done + ROWS_AHEAD < n) {
                size_t next = of_rows[done + ROWS_AHEAD];
                for (size_t at = 0; next < n_rows && at < row; at += PREFETCH_STEP)
                    __builtin_prefetch((const char *)source.buf + next * row + at);
            }
            size_t index = of_rows[done];
            if (index >= n_rows)
                break;
            memcpy((char *)target.buf + done * row, (const char *)source.buf + index * row, row);
        }
        Py_END_ALLOW_THREADS
    }
    if (!fits)
        PyErr_Format(PyExc_ValueError, "%zd bytes of %zu rows do not fit rows of %zd bytes", target.len, n, source.len);
    else if (row && done < n)
        PyErr_Format(PyExc_IndexError, "index %zu of the indices is out of range for %zu rows", done, n_rows);
    PyBuffer_Release(&target);
    PyBuffer_Release(&source);
    PyBuffer_Release(&indices);
    if (PyErr_Occurred())
        return NULL;
    return none();
}

/* Write the upper halves of float32 numbers, rounded to nearest, ties to even; every nan becomes 0x7FC0. */
FOR_EVERY_WIDTH static void
narrow(uint16_t *restrict out, const uint32_t *restrict bits, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        uint32_t rounded = (bits[i] + 0x7FFF + (bits[i] >> 16 & 1)) >> 16;
        out[i] = (uint16_t)((bits[i] & 0x7FFFFFFF) > 0x7F800000 ? 0x7FC0 : rounded);
    }
}

FOR_EVERY_WIDTH static void
widen(uint32_t *restrict bits, const uint16_t *restrict in, size_t n)
{
    for (size_t i = 0; i < n; i++)
        bits[i] = (uint32_t)in[i] << 16;
}

/* Call `narrow` or `widen` on the buffers (target, source), if their sizes and alignments fit. */
static PyObject *
convert(PyObject *args, int narrows)
{
    Py_buffer target, source;
    if (!PyArg_ParseTuple(args, "w*y*", &target, &source))
        return NULL;
    const Py_buffer *half = narrows ? &target : &source, *full = narrows ? &source : &target;
    int fits = half->len % 2 == 0 && full->len % 4 == 0 && half->len / 2 == full->len / 4;
    int aligned = !half->len || !((uintptr_t)half->buf % 2 || (uintptr_t)full->buf % 4);
    if (fits && aligned) {
        Py_BEGIN_ALLOW_THREADS
        if (narrows)
            narrow(target.buf, source.buf, (size_t)half->len / 2);
        else
            widen(target.buf, source.buf, (size_t)half->len / 2);
        Py_END_ALLOW_THREADS
    } else if (fits) {
        PyErr_SetString(PyExc_ValueError, "a buffer is not aligned to its elements");
    } else {
        PyErr_Format(PyExc_ValueError, "the buffers have %zd and %zd bytes", target.len, source.len);
    }
    PyBuffer_Release(&target);
    PyBuffer_Release(&source);
    if (!fits || !aligned)
        return NULL;
    return none();
}

PyDoc_STRVAR(encode_bfloat16_doc,
"encode_bfloat16(target, source)\n--\n\n"
"Write the upper halves of float32 numbers, rounded to nearest, into a buffer of half the size.");

static PyObject *
encode_bfloat16(PyObject *module, PyObject *args)
{
    return convert(args, 1);
}

PyDoc_STRVAR(decode_bfloat16_doc,
"decode_bfloat16(target, source)\n--\n\n"
"Write float32 numbers with the given upper halves into a buffer of twice the size.");

static PyObject *
decode_bfloat16(PyObject *module, PyObject *args)
{
    return convert(args, 0);
}

static PyMethodDef methods[] = {
    {"copy", copy, METH_VARARGS, copy_doc},
    {"take", take, METH_VARARGS, take_doc},
    {"encode_bfloat16", encode_bfloat16, METH_VARARGS, encode_bfloat16_doc},
    {"decode_bfloat16", decode_bfloat16, METH_VARARGS, decode_bfloat16_doc},
    {NULL, NULL, 0, NULL},
};

int add_meeting(PyObject *module); /* adds the type of `_meeting.c` */

static int
execute(PyObject *module)
{
    PyObject *type = PyType_FromSpec(&pieces_spec);
    if (type == NULL)
        return -1;
    if (PyModule_AddObject(module, "Pieces", type) < 0) {
        Py_DECREF(type);
        return -1;
    }
    return add_meeting(module);
}

static PyModuleDef_Slot slots[] = {
    {Py_mod_exec, execute},
#ifdef Py_GIL_DISABLED /* a build for one free-threaded version; the limited API of 3.11 has no such slot */
    {Py_mod_gil, Py_MOD_GIL_NOT_USED},
#endif
    {0, NULL},
};

static struct PyModuleDef definition = {
    PyModuleDef_HEAD_INIT,
    .m_name = "_kernels",
    .m_doc = "Copies, reductions, bfloat16 conversions, and barriers.",
    .m_methods = methods,
    .m_slots = slots,
};

PyMODINIT_FUNC
PyInit__kernels(void)
{
    return PyModuleDef_Init(&definition);
}
