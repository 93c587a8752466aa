"""A new task: a subclass of DataProcessor, and the program as it is.

python new_task.py --task_name=Reviews --do_train=true ...
"""

import os

import run_classifier


class ReviewsProcessor(run_classifier.DataProcessor):
    def get_train_examples(self, data_dir):
        return self._create_examples(data_dir, "train")

    def get_dev_examples(self, data_dir):
        return self._create_examples(data_dir, "dev")

    def get_test_examples(self, data_dir):
        return self._create_examples(data_dir, "test")

    def get_labels(self):
        return ["good", "bad"]

    def _create_examples(self, data_dir, kind):
        lines = self._read_tsv(os.path.join(data_dir, f"{kind}.tsv"))
        return [
            run_classifier.InputExample(
                guid=f"{kind}-{number}",
                text_a=line[0],
                label="good" if kind == "test" else line[1],
            )
            for number, line in enumerate(lines)
            if number
        ]


if __name__ == "__main__":
    run_classifier.main(processors={"reviews": ReviewsProcessor})
