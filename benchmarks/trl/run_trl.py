"""TRL's GRPOTrainer, one step a turn. Runs in the environment of ``constraints.txt``."""

from __future__ import annotations

import sys
import tempfile

from datasets import Dataset
from transformers import TrainerCallback
from trl import GRPOConfig, GRPOTrainer
from turns import Setting, Turns, score


class Steps(TrainerCallback):
    """Ends a turn after every optimizer update; the next begins with the generation of the next step."""

    def __init__(self, turns: Turns) -> None:
        self.turns = turns
        self.tokens = 0

    def on_train_begin(self, args, state, control, **_):  # type: ignore[no-untyped-def]
        self.turns.ready()

    def on_step_end(self, args, state, control, **_):  # type: ignore[no-untyped-def]
        tokens, self.tokens = self.tokens, 0
        self.turns.done(tokens)


def main() -> None:
    setting = Setting.read(sys.argv[1])
    steps = Steps(Turns())

    def reward(completions: list[str], completion_ids: list[list[int]], **_: object) -> list[float]:
        steps.tokens += sum(len(ids) for ids in completion_ids)
        return [score(text) for text in completions]

    with tempfile.TemporaryDirectory() as folder:
        trainer = GRPOTrainer(
            model=setting.model,
            reward_funcs=reward,
            train_dataset=Dataset.from_list([{"prompt": text} for text in setting.texts()]),
            callbacks=[steps],
            args=GRPOConfig(
                output_dir=folder,
                use_cpu=True,
                bf16=False,
                model_init_kwargs={"dtype": "float32"},
                per_device_train_batch_size=setting.prompts_per_step * setting.group_size,
                num_generations=setting.group_size,
                gradient_accumulation_steps=1,
                gradient_checkpointing=setting.checkpointing,
                max_completion_length=setting.max_tokens,
                max_steps=setting.steps,
                shuffle_dataset=False,
                learning_rate=setting.lr,
                lr_scheduler_type="constant",
                adam_beta1=setting.betas[0],
                adam_beta2=setting.betas[1],
                max_grad_norm=setting.grad_clip,
                loss_type="grpo",
                beta=0.0,
                num_iterations=1,
                logging_strategy="no",
                report_to="none",
                save_strategy="no",
                disable_tqdm=True,
            ),
        )
        trainer.train()


if __name__ == "__main__":
    main()
