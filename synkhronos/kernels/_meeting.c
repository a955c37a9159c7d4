/* A rank's part of a barrier (`sync/barrier.py`), without Python between arrival and release.
 *
 * The protocol is that of `Barrier`: the same words, semaphores and slots, in the same order. Whatever is not the common
 * case ends the call: a wait that takes longer than spinning, a wake-up of another cause, an abort, a death. `Barrier`
 * then continues from there. So this file never blocks, never decides against a rank, and raises no error of a session.
 */
#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <sched.h>
#include <semaphore.h>
#include <stdint.h>
#include <string.h>
#include <time.h>

#define TRY_NS 200      /* duration of a try in Python; `WaitPolicy` counts such tries */
#define TRIES_BETWEEN 16 /* number of tries between two looks at the clock */

/* The buffers, in this order; the last three kinds have one for each rank. */
enum { WORDS, ARRIVED, NOTICED_0, NOTICED_1, LENGTH_0, LENGTH_1, ARRIVALS, RELEASES };
/* The words of the session that matter, in the order of the argument `words`. */
enum { DECIDED, ABORT_REQUESTED, ABORTED, DEATHS, N_WORDS };

typedef struct {
    PyObject_HEAD
    int n, rank, root, tries, yields;
    Py_ssize_t words[N_WORDS]; /* indices */
    int n_views;               /* number acquired so far, to be released at the end */
    Py_buffer *views;
} Meeting;

static void
meeting_dealloc(Meeting *self)
{
    for (int i = 0; i < self->n_views; i++)
        PyBuffer_Release(&self->views[i]);
    PyMem_Free(self->views);
    PyTypeObject *type = Py_TYPE((PyObject *)self);
    PyObject_Free(self);
    Py_DECREF(type);
}

static int64_t
get(const Py_buffer *view, Py_ssize_t i)
{
    return __atomic_load_n((int64_t *)((char *)view->buf + i * view->strides[0]), __ATOMIC_SEQ_CST);
}

static void
set(const Py_buffer *view, Py_ssize_t i, int64_t value)
{
    __atomic_store_n((int64_t *)((char *)view->buf + i * view->strides[0]), value, __ATOMIC_SEQ_CST);
}

static int64_t
word(const Meeting *self, int which)
{
    return get(&self->views[WORDS], self->words[which]);
}

static const Py_buffer *
slot_of(const Meeting *self, int turn, int rank)
{
    return &self->views[RELEASES + (1 + turn) * self->n + rank];
}

/* Return the number of buffers, and what is wrong with buffer i of a meeting of n ranks, or NULL. */
static const char *
fault_of(const Py_buffer *view, int i, int n)
{
    if (i < ARRIVALS)
        return view->ndim != 1 || view->itemsize != 8 || (i != WORDS && view->shape[0] < n) ? "words" : NULL;
    if (i < RELEASES + n)
        return view->len < (Py_ssize_t)sizeof(sem_t) || (uintptr_t)view->buf % _Alignof(sem_t) ? "a semaphore" : NULL;
    return view->ndim != 1 || view->itemsize != 1 || view->strides[0] != 1 ? "a slot" : NULL;
}

PyDoc_STRVAR(meeting_doc,
"Meeting(buffers, words, n, rank, root, tries, yields)\n--\n\n"
"A rank's part of the barriers of a session on one host.\n\n"
"Parameters\n----------\n"
"buffers : sequence of buffers\n"
"    All writable, of a control block: words; arrived; noticed and notice_length, by turn; the semaphores arrivals and\n"
"    releases, by rank; the slots of notices, by turn and rank.\n"
"words : sequence of int\n"
"    Indices of the words DECIDED, ABORT_REQUESTED, ABORTED and DEATHS.\n"
"n, rank, root, tries, yields : int\n"
"    The number of ranks, this rank, the root, and the `WaitPolicy`.");

static PyObject *
meeting_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    PyObject *given, *words, *buffers = NULL, *indices = NULL;
    int n, rank, root, tries, yields, ok = 0;
    if (kwargs != NULL && PyDict_Size(kwargs) > 0) {
        PyErr_SetString(PyExc_TypeError, "Meeting takes no keyword arguments");
        return NULL;
    }
    if (!PyArg_ParseTuple(args, "OOiiiip", &given, &words, &n, &rank, &root, &tries, &yields))
        return NULL;
    Meeting *self = (Meeting *)PyType_GenericAlloc(type, 0); /* all zero */
    buffers = self == NULL ? NULL : PySequence_Tuple(given);
    indices = buffers == NULL ? NULL : PySequence_Tuple(words);
    if (indices == NULL)
        goto end;
    if (n < 1 || n > INT32_MAX / 8 || rank < 0 || rank >= n || root < 0 || root >= n ||
        PyTuple_Size(buffers) != RELEASES + 3 * (Py_ssize_t)n || PyTuple_Size(indices) != N_WORDS) {
        PyErr_SetString(PyExc_ValueError, "buffers, words and ranks do not match");
        goto end;
    }
    self->n = n, self->rank = rank, self->root = root, self->tries = tries, self->yields = yields;
    self->views = PyMem_New(Py_buffer, PyTuple_Size(buffers));
    if (self->views == NULL) {
        PyErr_NoMemory();
        goto end;
    }
    for (int i = 0; i < RELEASES + 3 * n; i++) {
        Py_buffer *view = &self->views[i];
        if (PyObject_GetBuffer(PyTuple_GetItem(buffers, i), view, PyBUF_STRIDED) < 0)
            goto end;
        self->n_views++;
        const char *fault = fault_of(view, i, n);
        if (fault != NULL) {
            PyErr_Format(PyExc_ValueError, "buffer %d is not that of %s", i, fault);
            goto end;
        }
    }
    for (int i = 0; i < N_WORDS; i++) {
        self->words[i] = PyNumber_AsSsize_t(PyTuple_GetItem(indices, i), PyExc_OverflowError);
        if (self->words[i] == -1 && PyErr_Occurred())
            goto end;
        if (self->words[i] < 0 || self->words[i] >= self->views[WORDS].shape[0]) {
            PyErr_SetString(PyExc_ValueError, "the index of a word is out of range");
            goto end;
        }
    }
    ok = 1;
end:
    Py_XDECREF(buffers);
    Py_XDECREF(indices);
    if (!ok) {
        Py_XDECREF((PyObject *)self);
        return NULL;
    }
    return (PyObject *)self;
}

/* Return nanoseconds since an arbitrary moment. */
static int64_t
now(void)
{
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (int64_t)time.tv_sec * 1000000000 + time.tv_nsec;
}

/* Decrement the semaphore, or with `spins` wait until that is possible; return whether it was decremented. Other threads
 * run meanwhile only if this core is shared. */
static int
acquire(const Meeting *self, int semaphore, int spins)
{
    sem_t *waited = self->views[semaphore].buf;
    if (sem_trywait(waited) == 0)
        return 1;
    if (!spins)
        return 0;
    int taken = 0;
    if (self->yields) {
        Py_BEGIN_ALLOW_THREADS
        for (int i = 1; i < self->tries && !taken; i++) {
            sched_yield();
            taken = sem_trywait(waited) == 0;
        }
        Py_END_ALLOW_THREADS
        return taken;
    }
    for (int64_t end = now() + (int64_t)self->tries * TRY_NS; !taken && now() < end;)
        for (int i = 0; i < TRIES_BETWEEN && !taken; i++) {
#if defined(__x86_64__)
            __builtin_ia32_pause();
#endif
            taken = sem_trywait(waited) == 0;
        }
    return taken;
}

/* Return whether the root must not decide a barrier of the command. */
static int
is_off(const Meeting *self, int64_t command)
{
    return word(self, ABORT_REQUESTED) >= command || word(self, DEATHS);
}

PyDoc_STRVAR(meet_doc,
"meet(number, command, turn, notice, spins)\n--\n\n"
"Arrive at a barrier; with `spins`, wait while spinning is worthwhile. Return -1 if the barrier is complete.\n\n"
"Otherwise, return how often this rank's semaphore was decremented: `arrivals` on the root, `releases` elsewhere.\n"
"The notice is written to this rank's slot for the turn, unless the turn is -1.");

static PyObject *
meeting_meet(Meeting *self, PyObject *args)
{
    long long number, command;
    int turn, spins, taken = 0, rank = self->rank;
    const char *notice;
    Py_ssize_t nbytes;
    if (!PyArg_ParseTuple(args, "LLiy#p", &number, &command, &turn, &notice, &nbytes, &spins))
        return NULL;
    if (turn < -1 || turn > 1 || (turn >= 0 && nbytes > slot_of(self, turn, rank)->len)) {
        PyErr_SetString(PyExc_ValueError, "the turn is unknown, or the notice does not fit the slot");
        return NULL;
    }
    if (turn >= 0) {
        memcpy(slot_of(self, turn, rank)->buf, notice, (size_t)nbytes);
        set(&self->views[LENGTH_0 + turn], rank, nbytes);
        set(&self->views[NOTICED_0 + turn], rank, number);
    }
    if (word(self, DECIDED) >= number)
        return PyLong_FromLong(-1);
    set(&self->views[ARRIVED], rank, number);
    if (rank != self->root) {
        sem_post(self->views[ARRIVALS].buf);
        taken = acquire(self, RELEASES + rank, spins);
        return PyLong_FromLong(taken && word(self, DECIDED) >= number ? -1 : taken);
    }
    for (; taken < self->n - 1; taken++)
        if (is_off(self, command) || !acquire(self, ARRIVALS, spins))
            return PyLong_FromLong(taken);
    for (int other = 0; other < self->n; other++)
        if (get(&self->views[ARRIVED], other) < number)
            return PyLong_FromLong(taken);
    if (is_off(self, command))
        return PyLong_FromLong(taken);
    set(&self->views[WORDS], self->words[DECIDED], number); /* from here on the barrier is complete for every rank */
    for (int other = 0; other < self->n; other++)
        if (other != rank)
            sem_post(self->views[RELEASES + other].buf);
    return PyLong_FromLong(-1);
}

PyDoc_STRVAR(notices_doc,
"notices(turn, expected)\n--\n\n"
"Return the notices of all ranks for the turn, as a tuple of bytes; None if any is not in its slot.\n\n"
"If they are equal to the tuple `expected`, return that tuple, whose hashes are known.");

static PyObject *
meeting_notices(Meeting *self, PyObject *args)
{
    int turn;
    PyObject *expected;
    if (!PyArg_ParseTuple(args, "iO", &turn, &expected))
        return NULL;
    if (turn < 0 || turn > 1) {
        PyErr_SetString(PyExc_ValueError, "the turn is neither 0 nor 1");
        return NULL;
    }
    int same = PyTuple_Check(expected) && PyTuple_Size(expected) == self->n;
    for (int rank = 0; rank < self->n; rank++) {
        const Py_buffer *slot = slot_of(self, turn, rank);
        int64_t nbytes = get(&self->views[LENGTH_0 + turn], rank);
        if (nbytes < 0 || nbytes > slot->len) {
            Py_INCREF(Py_None);
            return Py_None;
        }
        PyObject *known = same ? PyTuple_GetItem(expected, rank) : NULL;
        same = same && PyBytes_Check(known) && PyBytes_Size(known) == nbytes &&
               memcmp(PyBytes_AsString(known), slot->buf, (size_t)nbytes) == 0;
    }
    if (same) {
        Py_INCREF(expected);
        return expected;
    }
    PyObject *found = PyTuple_New(self->n);
    for (int rank = 0; found != NULL && rank < self->n; rank++) {
        const Py_buffer *slot = slot_of(self, turn, rank);
        int64_t nbytes = get(&self->views[LENGTH_0 + turn], rank);
        PyObject *notice = nbytes > slot->len ? PyErr_NoMemory() /* the rank breaks the protocol */
                                              : PyBytes_FromStringAndSize(slot->buf, (Py_ssize_t)nbytes);
        if (notice == NULL || PyTuple_SetItem(found, rank, notice) < 0)
            Py_CLEAR(found);
    }
    return found;
}

static PyMethodDef meeting_methods[] = {
    {"meet", (PyCFunction)meeting_meet, METH_VARARGS, meet_doc},
    {"notices", (PyCFunction)meeting_notices, METH_VARARGS, notices_doc},
    {NULL, NULL, 0, NULL},
};

static PyType_Slot meeting_slots[] = {
    {Py_tp_dealloc, meeting_dealloc},
    {Py_tp_doc, (void *)meeting_doc},
    {Py_tp_methods, meeting_methods},
    {Py_tp_new, meeting_new},
    {0, NULL},
};

static PyType_Spec meeting_spec = {
    .name = "synkhronos.kernels._kernels.Meeting",
    .basicsize = sizeof(Meeting),
    .flags = Py_TPFLAGS_DEFAULT,
    .slots = meeting_slots,
};

int add_meeting(PyObject *module); /* called by `_kernels.c` */

int
add_meeting(PyObject *module)
{
    PyObject *type = PyType_FromSpec(&meeting_spec);
    if (type == NULL)
        return -1;
    if (PyModule_AddObject(module, "Meeting", type) < 0) {
        Py_DECREF(type);
        return -1;
    }
    return 0;
}
