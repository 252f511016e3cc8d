"""The functions with which the text of a program runs it, as they are written into the file."""
MAIN = '''
def main(inputs=None, state=None, device="cpu"):
    """Run the program once and return its outputs by name.

    `inputs` and `state` hold arrays by name, zeros where there is none. The new state is put
    into `state`.
    """
    inputs, state = {} if inputs is None else inputs, {} if state is None else state
    ir, loads, variables, stores = build()
    session = popxl.Session(ir, device)
    session.write_variables_data({v: state[name] for name, v in variables.items() if name in state})
    feeds = {stream: inputs.get(name, np.zeros(stream.shape, stream.dtype.as_numpy()))
             for name, stream in loads.items()}
    with session:
        results = session.run(feeds)
    state.update((name, np.array(session.get_tensor_data(v))) for name, v in variables.items())
    return {name: results[stream] for name, stream in stores.items()}
'''
#: For programs with streams of several parts, state in remote memory, or replicas.
CUTS = '''
def cut(x, stream, transfers, parts, axis, reverse):
    """An array in parts along an axis, as the stream takes them; the rest is not read."""
    if parts > 1:
        x = np.moveaxis(np.reshape(x, (*x.shape[:axis], parts, -1, *x.shape[axis + 1:])), axis, 0)
    x = np.reshape(x, (parts, *stream.shape))[::-1 if reverse else 1]
    rest = np.zeros((transfers - parts, *stream.shape), x.dtype)
    return np.concatenate([x, rest]) if transfers > 1 else x[0, ...]


def join(x, transfers, parts, axis, reverse):
    """The array that the parts of a stream are."""
    x = x[:parts][::-1 if reverse else 1] if transfers > 1 else x[None]
    return np.concatenate(x, axis) if parts > 1 else x[0, ...]


'''
#: The first two, on one replica.
MAIN_OF_PARTS = '''def main(inputs=None, state=None, device="cpu"):
    """Run the program once and return its outputs by name.

    `inputs` and `state` hold arrays by name, zeros where there is none. The new state is put
    into `state`.
    """
    inputs, state = {} if inputs is None else inputs, {} if state is None else state
    ir, loads, variables, stores = build()
    session = popxl.Session(ir, device)
    transfers = ir.num_host_transfers
    for name, (shape, rows) in variables.items():
        if name in state:
            data = np.reshape(state[name], (len(rows), *rows[0].shape))
            session.write_variables_data(dict(zip(rows, data)))
    feeds = {}
    for name, (shape, stream) in loads.items():
        x = inputs.get(name, np.zeros(shape, stream.dtype.as_numpy()))
        feeds[stream] = cut(x, stream, transfers, *PARTS.get(name, (1, 0, False)))
    with session:
        results = session.run(feeds)
    for name, (shape, rows) in variables.items():
        state[name] = np.stack([session.get_tensor_data(v) for v in rows]).reshape(shape)
    return {name: join(results[stream], transfers, *PARTS.get(name, (1, 0, False))).reshape(shape)
            for name, (shape, stream) in stores.items()}
'''
#: Programs of replicas; `main_of_replicas` fills in what stands in braces of two.
_MAIN_OF_REPLICAS = '''
def parts_of(shape, spec):
    """For each replica the bounds of its part of an array, along each axis."""
    found = []
    for place in np.ndindex(*MESH.values()):
        number, bounds = dict(zip(MESH, place)), []
        for n, names in zip(shape, (*spec, *[()] * (len(shape) - len(spec)))):
            count, k = 1, 0
            for name in names:
                count, k = count * MESH[name], k * MESH[name] + number[name]
            bounds.append((k * (n // count), (k + 1) * (n // count)))
        found.append(tuple(bounds))
    return found


def index(bounds):
    """Bounds as the index of an array."""
    return tuple(slice(*pair) for pair in bounds)


def groups_of(name, shape):
    """The bounds of each part that a variable has."""
    return {{groups}}


def main(inputs=None, state=None, device="cpu"):
    """Run the program once and return its outputs by name.

    `inputs` and `state` hold whole arrays by name, zeros where there is none. The new state is
    put into `state`.{{note}}
    """
    inputs, state = {} if inputs is None else inputs, {} if state is None else state
    ir, loads, variables, stores = build()
    session = popxl.Session(ir, device)
    transfers = ir.num_host_transfers
    replicas = 1 if transfers > 1 else 0  # the axis of the replicas{{own}}
    for name, (shape, rows) in variables.items():
        if name in state:
            x = np.asarray(state[name])
            data = np.stack([x[index(b)].reshape(len(rows), *rows[0].shape)
                             for b in groups_of(name, shape)])
            data = data if len(data) > 1 else data[0]
            session.write_variables_data(
                {v: np.take(data, i, data.ndim - 1 - len(v.shape)) for i, v in enumerate(rows)})
    feeds = {}
    for name, (shape, stream) in loads.items():
        x = np.asarray(inputs.get(name, np.zeros(shape, stream.dtype.as_numpy())))
        parts = [cut(x[index(b)], stream, transfers, *PARTS.get(name, (1, 0, False)))
                 for b in parts_of(shape, SPECS.get(name, ())){{here}}]
        feeds[stream] = {{joined}}
    with session:
        results = session.run(feeds)
    for name, (shape, rows) in variables.items():
        groups = groups_of(name, shape)
        data = [session.get_tensor_data(v) for v in rows]
        x = state[name] = {{old}}
        for k, b in reversed(list(enumerate(groups)){{own_rows}}):
            part = np.stack([row[k] if len(groups) > 1 else row for row in data])
            x[index(b)] = part.reshape(x[index(b)].shape)
    out = {}
    for name, (shape, stream) in stores.items():
        x = out[name] = np.{{new}}(shape, stream.dtype.as_numpy())
        for r, b in enumerate(parts_of(shape, SPECS.get(name, ())){{here}}):
            part = {{taken}}
            part = join(part, transfers, *PARTS.get(name, (1, 0, False)))
            x[index(b)] = part.reshape(x[index(b)].shape)
    return out
'''


def main_of_replicas(is_distributed: bool, each: bool) -> str:
    """The main function of a program of replicas, which several processes may run between them.

    Variables have a part for `each` replica, or one for those that have the same.
    """
    stacked, taken = "np.stack(parts, replicas)", "np.take(results[stream], r, replicas)"
    filled = {
        "groups": "parts_of(shape, SPECS.get(name, ()))" if each else
        "list(dict.fromkeys(parts_of(shape, SPECS.get(name, ()))))",
        "note": """ Outputs and new state are those of the replicas of this
    process; the rest of them is zero, or what it was.""" if is_distributed else "",
        "own": """
    first, count = ir._pb_ir.getSessionOptions().globalReplicaOffset, ir.instance_replication_factor
    here = slice(first, first + count)""" if is_distributed else "",
        "here": "[here]" if is_distributed else "",
        "own_rows": "[here]" if is_distributed and each else "",
        "old": "np.array(state.get(name, np.zeros(shape, data[0].dtype)))" if is_distributed and each else
        "np.empty(shape, data[0].dtype)",
        "joined": f"{stacked} if count > 1 else parts[0]" if is_distributed else stacked,
        "new": "zeros" if is_distributed else "empty",
        "taken": f"{taken} if count > 1 else results[stream]" if is_distributed else taken,
    }
    text = _MAIN_OF_REPLICAS
    for name, value in filled.items():
        text = text.replace("{{" + name + "}}", value)
    return text


RUN = '''

if __name__ == "__main__":
    for name, value in main().items():
        print(name, value)
'''
