"""Scripts of more shapes, as text: `#E`, `#B`, `#D` and `#U` mark the epoch loop, the batch loop, the data call and the update.

They are read only; many use packages that need not be installed.
"""

MODEL_AND_LOADER = """import torch
from torch.utils.data import DataLoader, TensorDataset
ds = TensorDataset(torch.randn(16, 4), torch.randn(16, 1))
loader = DataLoader(ds, batch_size=4)
model = torch.nn.Linear(4, 1)
opt = torch.optim.SGD(model.parameters(), 0.1)
crit = torch.nn.MSELoss()
"""

SHAPES_IN_TEXT = {
    "loader made in the header": MODEL_AND_LOADER
    + """
for e in range(2): #E
    for x, y in DataLoader(ds, batch_size=2, shuffle=True): #B #D
        loss = crit(model(x), y)
        loss.backward()
        opt.step() #U
""",
    "queue": MODEL_AND_LOADER
    + """
import queue
q = queue.Queue()
done = False
while not done: #B
    x, y = q.get() #D
    crit(model(x), y).backward()
    opt.step() #U
""",
    "method that gets the next batch": MODEL_AND_LOADER
    + """
class T:
    def __init__(self):
        self.it = iter(loader)
    def next_batch(self):
        try:
            return next(self.it)
        except StopIteration:
            self.it = iter(loader)
            return next(self.it)
    def train(self, n):
        step = 0
        while step < n: #B
            batch = self.next_batch() #D
            loss = crit(model(batch[0]), batch[1])
            opt.zero_grad(); loss.backward(); opt.step() #U
            step += 1
T().train(5)
""",
    "endless generator by next": MODEL_AND_LOADER
    + """
def gen():
    while True:
        for b in loader:
            yield b
g = gen()
for epoch in range(2): #E
    for i in range(4): #B
        x, y = next(g) #D
        loss = crit(model(x), y)
        loss.backward()
        opt.step() #U
""",
    "__next__": MODEL_AND_LOADER
    + """
it = iter(loader)
for i in range(4): #B
    x, y = it.__next__() #D
    crit(model(x), y).backward()
    opt.step() #U
""",
    "items one by one": MODEL_AND_LOADER
    + """
for epoch in range(3): #E
    for i in range(len(ds)): #B
        x, y = ds[i] #D
        opt.zero_grad()
        crit(model(x), y).backward()
        opt.step() #U
""",
    "batch sampler": MODEL_AND_LOADER
    + """
from torch.utils.data import BatchSampler, RandomSampler
X, Y = ds.tensors
for ep in range(2): #E
    for idx in BatchSampler(RandomSampler(ds), 4, False): #B
        xb = X[idx] #D
        yb = Y[idx]
        crit(model(xb), yb).backward()
        opt.step() #U
""",
    "splits of tensors": MODEL_AND_LOADER
    + """
X, Y = ds.tensors
for ep in range(2): #E
    for xb, yb in zip(X.split(4), Y.split(4)): #B #D
        crit(model(xb), yb).backward()
        opt.step() #U
""",
    "phases": MODEL_AND_LOADER
    + """
loaders = {"train": loader, "val": loader}
for epoch in range(2):
    for phase in ["train", "val"]: #E
        for x, y in loaders[phase]: #B #D
            opt.zero_grad()
            with torch.set_grad_enabled(phase == "train"):
                loss = crit(model(x), y)
                if phase == "train":
                    loss.backward()
                    opt.step() #U
""",
    "accelerate": MODEL_AND_LOADER
    + """
from accelerate import Accelerator
acc = Accelerator()
model, opt, dl = acc.prepare(model, opt, loader)
for epoch in range(2): #E
    for batch in dl: #B #D
        with acc.accumulate(model):
            out = model(batch[0])
            loss = crit(out, batch[1])
            acc.backward(loss)
            opt.step() #U
            opt.zero_grad()
""",
    "deepspeed": MODEL_AND_LOADER
    + """
import deepspeed
engine, _, dl, _ = deepspeed.initialize(model=model, training_data=ds)
for step, batch in enumerate(dl): #B #D
    loss = engine(batch)
    engine.backward(loss)
    engine.step() #U
""",
    "weights changed by hand": MODEL_AND_LOADER
    + """
for ep in range(2): #E
    for x, y in loader: #B #D
        loss = crit(model(x), y)
        loss.backward() #U
        with torch.no_grad():
            for p in model.parameters():
                p -= 0.1 * p.grad
                p.grad.zero_()
""",
    "nested functions": MODEL_AND_LOADER
    + """
def main():
    def train_epoch():
        for x, y in loader: #B #D
            opt.zero_grad()
            crit(model(x), y).backward()
            opt.step() #U
    for e in range(2): #E
        train_epoch()
main()
""",
    "object that is called": MODEL_AND_LOADER
    + """
class T:
    def __call__(self):
        for e in range(2): #E
            self.epoch()
    def epoch(self):
        for x, y in loader: #B #D
            opt.zero_grad()
            crit(model(x), y).backward()
            opt.step() #U
t = T()
t()
""",
    "chosen from a dict": MODEL_AND_LOADER
    + """
import sys
def fit():
    for e in range(2): #E
        for x, y in loader: #B #D
            opt.zero_grad()
            crit(model(x), y).backward()
            opt.step() #U
def test():
    for x, y in loader:
        model(x)
{"fit": fit, "test": test}[sys.argv[1]]()
""",
    "one function trains and evaluates": MODEL_AND_LOADER
    + """
def run_epoch(dl, train):
    for x, y in dl: #B #D
        loss = crit(model(x), y)
        if train:
            opt.zero_grad()
            loss.backward()
            opt.step() #U
val = DataLoader(ds)
for e in range(2): #E
    run_epoch(loader, True)
    run_epoch(val, False)
""",
    "chunks of a batch": MODEL_AND_LOADER
    + """
for e in range(2): #E
    for x, y in loader: #B #D
        opt.zero_grad()
        for xc, yc in zip(x.chunk(2), y.chunk(2)):
            crit(model(xc), yc).backward()
        opt.step() #U
""",
    "truncated backpropagation": MODEL_AND_LOADER
    + """
for e in range(2): #E
    for x, y in loader: #B #D
        for t in range(0, 4, 2):
            xc = x[:, t:t + 2]
            loss = crit(model(xc), y)
            opt.zero_grad(); loss.backward(); opt.step() #U
""",
    "prefetcher": MODEL_AND_LOADER
    + """
class Prefetcher:
    def __init__(self, l):
        self.it = iter(l)
        self.preload()
    def preload(self):
        try:
            self.nx = next(self.it)
        except StopIteration:
            self.nx = (None, None)
    def next(self):
        r = self.nx
        self.preload()
        return r
for e in range(2): #E
    pf = Prefetcher(loader)
    x, y = pf.next()
    while x is not None: #B
        crit(model(x), y).backward()
        opt.step() #U
        x, y = pf.next() #D
""",
    "split permutation": MODEL_AND_LOADER
    + """
import numpy as np
X, Y = ds.tensors
for e in range(2): #E
    perm = np.random.permutation(16)
    for i, idx in enumerate(np.array_split(perm, 4)): #B
        xb, yb = X[idx], Y[idx] #D
        crit(model(xb), yb).backward()
        opt.step() #U
""",
    "cycle": MODEL_AND_LOADER
    + """
import itertools
for step, (x, y) in zip(range(10), itertools.cycle(loader)): #B #D
    crit(model(x), y).backward()
    opt.step() #U
""",
    "iterable class": MODEL_AND_LOADER
    + """
class L:
    def __iter__(self):
        for i in range(4):
            yield torch.randn(2, 4), torch.randn(2, 1)
train_data = L()
for e in range(2): #E
    for x, y in train_data: #B #D
        crit(model(x), y).backward()
        opt.step() #U
""",
    "has_next": MODEL_AND_LOADER
    + """
class L:
    def has_next(self): return True
    def next_batch(self): return next(iter(loader))
l = L()
while l.has_next(): #B
    x, y = l.next_batch() #D
    crit(model(x), y).backward()
    opt.step() #U
""",
    "callbacks": MODEL_AND_LOADER
    + """
def train(model, optimizer, data, *, epochs=1, callbacks=()):
    for epoch in range(epochs): #E
        for callback in callbacks:
            callback(epoch)
        for batch_index, batch in enumerate(data): #B #D
            loss = loss_of(model, batch)
            optimizer.zero_grad()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step() #U
            for callback in callbacks:
                callback(batch_index)
def loss_of(model, batch):
    return crit(model(batch[0]), batch[1])
train(model, opt, loader, epochs=3)
""",
    "hdf5": MODEL_AND_LOADER
    + """
import h5py
with h5py.File("x.h5") as f:
    n = f["x"].shape[0]
    for e in range(2): #E
        for i in range(0, n, 4): #B
            x = torch.tensor(f["x"][i:i + 4]) #D
            y = torch.tensor(f["y"][i:i + 4])
            crit(model(x), y).backward()
            opt.step() #U
""",
    "accumulation from a generator": MODEL_AND_LOADER
    + """
def cycle(dl):
    while True:
        for d in dl:
            yield d
class Trainer(object):
    def __init__(self, model, ds, steps=10, accum=2):
        self.model = model
        dl = DataLoader(ds, batch_size=2)
        self.dl = cycle(dl)
        self.opt = torch.optim.Adam(model.parameters())
        self.step, self.steps, self.accum = 0, steps, accum
    def train(self):
        while self.step < self.steps: #B
            self.model.train()
            total_loss = 0.
            for _ in range(self.accum):
                data = next(self.dl) #D
                loss = self.model(data[0]).mean()
                loss = loss / self.accum
                total_loss += loss.item()
                loss.backward()
            self.opt.step() #U
            self.opt.zero_grad()
            self.step += 1
Trainer(model, ds).train()
""",
    "click": MODEL_AND_LOADER
    + """
import click
@click.command()
@click.option("--epochs", default=2)
def main(epochs):
    for e in range(epochs): #E
        for x, y in loader: #B #D
            crit(model(x), y).backward()
            opt.step() #U
if __name__ == "__main__":
    main()
""",
    "while loops with counters": MODEL_AND_LOADER
    + """
losses = [0.0]
e = 0
while e < 3: #E
    i = 0
    while i < 16: #B
        x = ds.tensors[0][i:i + 4] #D
        y = ds.tensors[1][i:i + 4]
        loss = crit(model(x), y)
        opt.zero_grad()
        loss.backward()
        opt.step() #U
        i += 4
    e += 1
""",
    "next with a default": MODEL_AND_LOADER
    + """
def do_train():
    it = iter(loader)
    while True: #B
        batch = next(it, None) #D
        if batch is None:
            break
        x, y = batch
        loss = crit(model(x), y)
        opt.zero_grad(); loss.backward()
        opt.step() #U
for e in range(3): #E
    do_train()
""",
    "plain": MODEL_AND_LOADER
    + """
for e in range(2): #E
    for i, data in enumerate(loader, 0): #B #D
        inputs, labels = data
        inputs, labels = inputs.to("cpu"), labels.to("cpu")
        opt.zero_grad()
        outputs = model(inputs)
        loss = crit(outputs, labels)
        l2 = sum(p.pow(2).sum() for p in model.parameters())
        loss = loss + 0.01 * l2
        loss.backward()
        opt.step() #U
        running = loss.item()
""",
    "assignment in the header": MODEL_AND_LOADER
    + """
def evaluate():
    for x, y in loader:
        loss = crit(model(x), y)
def save(): torch.save(model.state_dict(), "x.pt")
for epoch in range(2): #E
    train_loss = 0
    for x, y in (pbar := enumerate_progress(loader)): #B #D
        opt.zero_grad()
        loss = crit(model(x), y)
        loss.backward()
        opt.step() #U
        train_loss += loss.item()
    evaluate()
    save()
""",
    "dataclass": MODEL_AND_LOADER
    + """
from dataclasses import dataclass
@dataclass
class Job:
    loader: DataLoader
    opt: torch.optim.Optimizer
    def go(self):
        for e in range(2): #E
            for x, y in self.loader: #B #D
                crit(model(x), y).backward()
                self.opt.step() #U
Job(loader, opt=opt).go()
""",
    "gradients of autograd": MODEL_AND_LOADER
    + """
def update(params, batch):
    x, y = batch
    loss = crit(model(x), y)
    grads = torch.autograd.grad(loss, list(model.parameters())) #U
    with torch.no_grad():
        for p, g in zip(model.parameters(), grads):
            p -= 0.1 * g
for e in range(2): #E
    for batch in loader: #B #D
        update(None, batch)
""",
    "closure by keyword": MODEL_AND_LOADER
    + """
step = 0
while step < 100: #E
    for x, y in loader: #B #D
        def closure():
            opt.zero_grad()
            out = model(x)
            loss = crit(out, y)
            loss.backward()
            return loss
        loss = opt.step(closure=closure) #U
        step += 1
""",
    "files": MODEL_AND_LOADER
    + """
import random
random.seed(1)
files = ["a", "b"]
def load(f): return torch.randn(4, 4), torch.randn(4, 1)
for e in range(2): #E
    random.shuffle(files)
    for f in files: #B
        x, y = load(f) #D
        crit(model(x), y).backward()
        opt.step() #U
""",
    "files with slices": MODEL_AND_LOADER
    + """
for e in range(2):
    for f in ["a", "b"]: #E
        X, Y = torch.load(f)
        for i in range(0, len(X), 4): #B
            x, y = X[i:i+4], Y[i:i+4] #D
            crit(model(x), y).backward()
            opt.step() #U
""",
    "scaler that is called": """
from dataclasses import dataclass
import torch
class NativeScaler:
    def __init__(self):
        self._scaler = torch.amp.GradScaler()
    def __call__(self, loss, optimizer, parameters=None):
        self._scaler.scale(loss).backward()
        self._scaler.step(optimizer) #U
        self._scaler.update()
def one_epoch(model, criterion, data_loader, optimizer, loss_scaler):
    for it, (samples, targets) in enumerate(data_loader): #B #D
        with torch.autocast("cpu"):
            outputs = model(samples)
            loss = criterion(outputs, targets)
        loss_scaler(loss, optimizer, parameters=model.parameters())
def main():
    model = build()
    optimizer = torch.optim.AdamW(model.parameters())
    loss_scaler = NativeScaler()
    for epoch in range(3): #E
        one_epoch(model, torch.nn.MSELoss(), loader(), optimizer, loss_scaler)
main()
""",
    "replay buffer": """
import torch
import numpy as np
class ReplayBuffer:
    def __init__(self, size):
        self.states = np.zeros((size, 4))
        self.position = 0
    def add(self, state):
        self.states[self.position] = state
        self.position += 1
    def sample(self, size):
        chosen = np.random.randint(0, self.position, size)
        return torch.tensor(self.states[chosen])
env = make_env()
q_network = torch.nn.Linear(4, 2)
optimizer = torch.optim.Adam(q_network.parameters())
buffer = ReplayBuffer(100)
state = env.reset()
for global_step in range(100): #B
    action = q_network(torch.tensor(state)).argmax()
    state, reward, done, info = env.step(action)
    buffer.add(state)
    if global_step > 10:
        batch = buffer.sample(8) #D
        loss = q_network(batch).pow(2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step() #U
""",
    "jax": """
import jax, optax
from flax.training import train_state
@jax.jit
def train_step(state, batch):
    def loss_fn(params):
        return ((state.apply_fn(params, batch["x"]) - batch["y"]) ** 2).mean()
    grads = jax.grad(loss_fn)(state.params)
    return state.apply_gradients(grads=grads) #U
def main(ds):
    state = create_state()
    for epoch in range(3): #E
        for batch in ds.as_numpy_iterator(): #B #D
            state = train_step(state, batch)
main(load())
""",
    "tensorflow iterator": """
import tensorflow as tf
ds = tf.data.Dataset.range(8)
opt = tf.keras.optimizers.Adam()
model = tf.keras.Sequential()
it = iter(ds.repeat())
for step in tf.range(10): #B
    x, y = next(it) #D
    with tf.GradientTape() as t:
        loss = tf.reduce_mean(tf.square(model(x) - y))
    g = t.gradient(loss, model.trainable_variables)
    opt.apply(g, model.trainable_variables) #U
""",
    "train_on_batch of slices": """
from tensorflow import keras
model = keras.models.Sequential()
for epoch in range(2): #E
    for i in range(10): #B
        x, y = x_train[i * 8:(i + 1) * 8], y_train[i * 8:(i + 1) * 8] #D
        loss = model.train_on_batch(x, y) #U
""",
    "match": """
import torch
def main(args):
    net = torch.nn.Linear(2, 1)
    opt = getattr(torch.optim, args.opt)(net.parameters())
    match args.mode:
        case "train":
            for epoch in range(args.epochs): #E
                train(net, opt)
        case "test":
            test(net)
def train(net, opt):
    for x in data_source.minibatches(32): #B #D
        opt.zero_grad()
        loss = net(x).sum()
        loss.backward()
        opt.step() #U
def test(net):
    for x in data_source.minibatches(32):
        net(x)
main(parse())
""",
    "spawned workers": """
import torch, torch.multiprocessing as mp
def worker(gpu, args):
    model = torch.nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    sampler = torch.utils.data.distributed.DistributedSampler(args.ds)
    loader = torch.utils.data.DataLoader(args.ds, sampler=sampler)
    for epoch in range(args.start, args.epochs): #E
        sampler.set_epoch(epoch)
        train(loader, model, optimizer)
        acc = validate(loader, model)
def train(train_loader, model, optimizer):
    end = time()
    for i, (images, target) in enumerate(train_loader): #B #D
        output = model(images)
        loss = torch.nn.functional.cross_entropy(output, target)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step() #U
def validate(val_loader, model):
    def run_validate(loader, base=0):
        for i, (images, target) in enumerate(loader):
            model(images)
    run_validate(val_loader)
if __name__ == "__main__":
    mp.spawn(worker, nprocs=2, args=(parse(),))
""",
    "loop variables of an object": """
import torch
class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.l = torch.nn.Linear(2, 1)
    def forward(self, x):
        return self.l(x)
    def training_step(self, batch):
        x, y = batch
        return torch.nn.functional.mse_loss(self(x), y)
class Loop:
    def __init__(self, model, loaders):
        self.model = model
        self.train_loader, self.val_loader = loaders
        self.optimizers = {"main": torch.optim.SGD(model.parameters(), 0.1)}
    def run(self, epochs):
        for self.epoch in range(epochs): #E
            self.on_epoch()
    def on_epoch(self):
        for self.batch_idx, self.batch in enumerate(self.train_loader): #B #D
            self.loss = self.model.training_step(self.batch)
            self.backward()
            for name, o in self.optimizers.items():
                o.step() #U
                o.zero_grad()
    def backward(self):
        self.loss.backward()
Loop(Model(), make_loaders()).run(3)
""",
    "function that is passed": """
import torch
def train(model, opt, get_batch, steps):
    for i in range(steps): #B
        xb, yb = get_batch() #D
        loss = ((model(xb) - yb) ** 2).mean()
        opt.zero_grad()
        loss.backward()
        opt.step() #U
def main():
    X, Y = torch.randn(10, 2), torch.randn(10, 1)
    def sample():
        ix = torch.randint(10, (4,))
        return X[ix], Y[ix]
    model = torch.nn.Linear(2, 1)
    train(model, torch.optim.SGD(model.parameters(), 0.1), sample, 10)
main()
""",
    "narrow in try": """
import torch
X = torch.randn(10, 2)
model = torch.nn.Linear(2, 1)
opt = torch.optim.SGD(model.parameters(), 0.1)
n = 0
try:
    while True: #E
        for start in torch.arange(0, 10, 2): #B
            batch = X.narrow(0, int(start), 2) #D
            loss = model(batch).sum()
            opt.zero_grad(); loss.backward(); opt.step() #U
        n += 1
        if n > 3: raise KeyboardInterrupt
except KeyboardInterrupt:
    print("stopped")
finally:
    torch.save(model.state_dict(), "x")
""",
    "context managers": """
import torch
from contextlib import contextmanager
@contextmanager
def session(n):
    model = torch.nn.Linear(2, 1)
    yield model, torch.optim.SGD(model.parameters(), 0.1), torch.utils.data.DataLoader(n)
with session(3) as (model, opt, loader):
    for epoch in range(2): #E
        with tqdm(loader, unit="batch") as bar:
            for x, y in bar: #B #D
                bar.set_description(f"{epoch}")
                opt.zero_grad()
                torch.nn.functional.mse_loss(model(x), y).backward()
                opt.step() #U
""",
    "updates in a comprehension": """
import torch
opts = []
net = torch.nn.Linear(2, 1)
opts += [torch.optim.SGD(net.parameters(), 0.1)]
for epoch in range(2): #E
    for batch in loader: #B #D
        loss = 0
        for layer in range(2):
            loss += net(batch).sum() * layer
        loss.backward()
        [o.step() for o in opts] #U
        [o.zero_grad() for o in opts]
""",
    "other name of a function, passed twice": MODEL_AND_LOADER
    + """
def step(batch):
    crit(model(batch[0]), batch[1]).backward()
    opt.step() #U
def one_pass(function):
    for batch in loader: #B #D
        function(batch)
def run(action):
    for epoch in range(2): #E
        one_pass(action)
chosen = step
run(chosen)
""",
    "a list that a loop filters": """
import torch
def train(epochs):
    model = torch.nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for epoch in range(epochs): #E
        for inputs in torch.utils.data.DataLoader(torch.ones(4, 2)): #B #D
            model(inputs).mean().backward()
            optimizer.step() #U
def main():
    results = []
    for epochs in (1, 2):
        results = filter(lambda x: x, results)
        for result in results:
            print(result, train(result))
main()
""",
}
