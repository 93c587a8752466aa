"""Names of google-research/bert's `optimization.py`, for graphs.

With a tuning method in the graph (`modeling.BertModel`) `create_optimizer`
trains what the method trains, and not BERT.
"""

import json
import re

import tensorflow as tf

from adapter_bert import optimization

v1 = tf.compat.v1
# Collections of variables. Source: google-research/adapter-bert, `modeling.py`.
ADAPTERS, LAYER_NORM, HEAD = "adapters", "layer_norm", "head"
# A collection of the recipes of the graph's tuning methods, as JSON, which
# files of graphs can hold.
RECIPES = "recipes"


def add_recipe(recipe, variables):
    """Has `create_optimizer` treat a method's variables as they need it.

    `variables` are the graph's by the names that the recipe has.
    """
    names = {name: v.op.name for name, v in variables.items()}
    record = {
        "undecayed": sorted(names[n] for n in recipe.undecayed if n in names),
        "rates": {names[n]: r for n, r in recipe.rates.items() if n in names},
    }
    v1.add_to_collection(RECIPES, json.dumps(record))


def trained_variables():
    """Lists the variables that a graph trains, without the frozen ones."""
    return [v for v in v1.trainable_variables() if v.trainable]


def create_optimizer(
    loss,
    init_lr,
    num_train_steps,
    num_warmup_steps,
    use_tpu,
):
    """Makes a training step: gradients, clipping, Adam, step count.

    `init_lr` is the peak; lengths are in steps. With `use_tpu` gradients are
    clipped on each TPU core and added up, as in google-research/bert.
    """
    step = v1.train.get_or_create_global_step()
    schedule = optimization.Schedule(
        init_lr, num_train_steps, num_warmup_steps or 0
    )
    recipes = [json.loads(text) for text in v1.get_collection(RECIPES)]
    optimizer = AdamWeightDecayOptimizer(
        learning_rate=schedule(step + 1),
        weight_decay_rate=optimization.WEIGHT_DECAY,
        exclude_from_weight_decay=[
            optimization.NO_DECAY.pattern,
            *(
                f"^{re.escape(name)}$"
                for recipe in recipes
                for name in recipe["undecayed"]
            ),
        ],
    )
    for recipe in recipes:
        optimizer.rates.update(recipe["rates"])
    if use_tpu:
        optimizer = v1.tpu.CrossShardOptimizer(optimizer)
    variables = trained_variables()
    gradients = optimization.clip(tf.gradients(loss, variables))
    update = optimizer.apply_gradients(zip(gradients, variables), step)
    with tf.control_dependencies([update]):
        return tf.group(v1.assign_add(step, 1))


def _means(strategy, gradients, variables):
    mean = tf.distribute.ReduceOp.MEAN
    pairs = list(zip(gradients, variables))
    return strategy.extended.batch_reduce_to(mean, pairs)


class AdamWeightDecayOptimizer(v1.train.Optimizer):
    """Adam with decoupled weight decay, without bias correction.

    Slots are variables called `<variable>/adam_m` and `<variable>/adam_v`.

    Source: google-research/bert and adapter-bert, `optimization.py`; Loshchilov
    and Hutter 2019.
    """

    def __init__(
        self,
        learning_rate,
        weight_decay_rate=0.0,
        beta_1=optimization.BETA_1,
        beta_2=optimization.BETA_2,
        epsilon=optimization.EPSILON,
        exclude_from_weight_decay=None,
        name="AdamWeightDecayOptimizer",
        adapter_weight_decay_rate=None,
    ):
        """Takes the constants.

        `exclude_from_weight_decay` are regular expressions, searched in names.
        `adapter_weight_decay_rate` is by default `weight_decay_rate`.
        """
        super().__init__(False, name)
        self.learning_rate = learning_rate
        self.weight_decay_rate = weight_decay_rate
        self.adapter_weight_decay_rate = (
            weight_decay_rate
            if adapter_weight_decay_rate is None
            else adapter_weight_decay_rate
        )
        self.beta_1 = beta_1
        self.beta_2 = beta_2
        self.epsilon = epsilon
        self.exclude_from_weight_decay = exclude_from_weight_decay
        # Factors of the rate, by name of the variable.
        self.rates = {}

    def apply_gradients(
        self,
        grads_and_vars,
        global_step=None,
        name=None,
    ):
        """Updates variables and slots; the step count stays what it is.

        Gradients are averaged over a strategy's replicas. Variables that a
        method freezes stay what they are, gradients of zeros or not.
        """
        del global_step
        frozen = {v.name for v in v1.trainable_variables() if not v.trainable}
        # Of embeddings the gradient is of the rows that were read.
        moving = [
            (tf.convert_to_tensor(gradient), variable)
            for gradient, variable in grads_and_vars
            if gradient is not None
            and variable is not None
            and variable.name not in frozen
        ]
        replica = tf.distribute.get_replica_context()
        if moving and replica and replica.num_replicas_in_sync > 1:
            gradients, variables = map(list, zip(*moving))
            # `all_reduce` finds no mirrored variables in a graph.
            gradients = replica.merge_call(_means, (gradients, variables))
            moving = list(zip(gradients, variables))
        adapters = {v.name for v in v1.get_collection(ADAPTERS)}
        updates = []
        for gradient, variable in moving:
            variable_name = self._get_variable_name(variable.name)
            m, v = (
                v1.get_variable(
                    f"{variable_name}/{slot}",
                    shape=variable.shape.as_list(),
                    dtype=tf.float32,
                    trainable=False,
                    initializer=tf.zeros_initializer(),
                )
                for slot in ("adam_m", "adam_v")
            )
            next_m = self.beta_1 * m + (1.0 - self.beta_1) * gradient
            next_v = self.beta_2 * v + (1.0 - self.beta_2) * gradient**2
            change = next_m / (tf.sqrt(next_v) + self.epsilon)
            decay = self.weight_decay_rate
            if variable.name in adapters:
                decay = self.adapter_weight_decay_rate
            if decay and self._do_use_weight_decay(variable_name):
                change += decay * variable
            rate = self.learning_rate * self.rates.get(variable_name, 1.0)
            moved = variable - rate * change
            # Nothing is assigned before everything has been read.
            with tf.control_dependencies([moved, next_m, next_v]):
                updates += [
                    v1.assign(variable, moved),
                    v1.assign(m, next_m),
                    v1.assign(v, next_v),
                ]
        return tf.group(*updates, name=name)

    def _do_use_weight_decay(self, param_name):
        excluded = self.exclude_from_weight_decay or ()
        return not any(re.search(pattern, param_name) for pattern in excluded)

    def _get_variable_name(self, param_name):
        return re.sub(r":\d+$", "", param_name)
