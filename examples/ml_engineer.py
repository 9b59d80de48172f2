"""For ML engineers: a scikit-learn classifier whose scores are veiled; labels and accuracy stay.

pip install 'scoreveil[fast,sklearn]'
python examples/ml_engineer.py
"""

import numpy as np
from sklearn.datasets import load_digits
from sklearn.ensemble import RandomForestClassifier
from sklearn.model_selection import train_test_split

from scoreveil.integrations.sklearn import VeiledClassifier

x, y = load_digits(return_X_y=True)
x, x_test, y, y_test = train_test_split(x, y, test_size=0.5, random_state=0)

# the model as it is deployed today
forest = RandomForestClassifier(random_state=0).fit(x, y)

# the same forest behind a veil, which is fitted by cross-validation
veiled = VeiledClassifier(RandomForestClassifier(random_state=0)).fit(x, y)

raw, answer = forest.predict_proba(x_test), veiled.predict_proba(x_test)
same = np.array_equal(answer, veiled.predict_proba(x_test))
print(f"accuracy     {forest.score(x_test, y_test):.3f} bare, {veiled.score(x_test, y_test):.3f} veiled")
print(f"same label   {np.mean(raw.argmax(axis=1) == answer.argmax(axis=1)):.0%} of {len(x_test)} records")
print(f"asked again  {'the same answer' if same else 'another answer'}")

print("The mean top score differs between records that were trained on and others. This difference is the leak:")
for name, model in (("bare", forest), ("veiled", veiled)):
    members, others = model.predict_proba(x).max(axis=1), model.predict_proba(x_test).max(axis=1)
    print(f"    {name:<8} {members.mean():.2f} where trained on, {others.mean():.2f} elsewhere")
print()
print(veiled.guarantee_.words)
