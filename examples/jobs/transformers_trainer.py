"""Transformers' Trainer on a tiny model, without any download. Any launcher starts it:

allranks run --nprocs 2 examples/jobs/transformers_trainer.py --output_dir out
"""

import gc

import torch
from torch.utils.data import Dataset
from transformers import (
    GPT2Config,
    GPT2LMHeadModel,
    HfArgumentParser,
    Trainer,
    TrainerCallback,
    TrainingArguments,
    set_seed,
)

BATCH = 16  # of all processes together


class Counting(Dataset):
    """Rows of numbers that count upwards, each from another start."""

    def __len__(self):
        return 128

    def __getitem__(self, index):
        row = (torch.arange(8) + index) % 32
        return {"input_ids": row, "labels": row}


class Losses(TrainerCallback):
    """Prints each logged loss, which Trainer has averaged over all processes."""

    def on_log(self, args, state, control, logs=None, **_):
        if state.is_world_process_zero and "loss" in (logs or {}):
            print(f"loss {state.global_step} {float(logs['loss']):.6f}", flush=True)


def main():
    (args,) = HfArgumentParser(TrainingArguments).parse_args_into_dataclasses()
    args.per_device_train_batch_size = BATCH // args.world_size
    args.logging_steps, args.max_steps = 1, 8
    args.learning_rate, args.lr_scheduler_type = 3e-3, "constant"
    args.save_strategy, args.report_to, args.disable_tqdm = "no", [], True
    args.ddp_find_unused_parameters = False
    args.dataloader_pin_memory = torch.cuda.is_available()

    set_seed(0)
    config = GPT2Config(
        vocab_size=32, n_positions=8, n_embd=32, n_layer=1, n_head=2, resid_pdrop=0, embd_pdrop=0,
        attn_pdrop=0, bos_token_id=0, eos_token_id=0,
    )  # fmt: skip
    trainer = Trainer(GPT2LMHeadModel(config), args, train_dataset=Counting(), callbacks=[Losses()])
    print(f"process {args.process_index} of {args.world_size} trains on {args.device}", flush=True)
    trainer.train()
    trainer.accelerator.end_training()
    del trainer  # DDP must go before the threads of the process group that it holds
    gc.collect()


if __name__ == "__main__":
    main()
