"""The specification's engine as printed, with only what keeps it from running repaired.

Repaired: results carry `required`, BLEU is imported where it is used, an absent governance
service is a stub that says valid, and the time carries a zone. Everything else is as printed, costs included.
"""

from datetime import UTC, datetime
from enum import Enum
from typing import Any, Optional, Union

from pydantic import BaseModel


class ComparisonOperator(str, Enum):
    GTE = "gte"
    GT = "gt"
    LTE = "lte"
    LT = "lt"
    EQ = "eq"
    NEQ = "neq"
    IN_RANGE = "in_range"
    CONTAINS_ALL = "contains_all"
    CONTAINS_ANY = "contains_any"


class SuccessCriterion(BaseModel):
    metric: str
    metric_type: str
    comparison: ComparisonOperator
    threshold: Union[float, bool, list[Any], dict[str, Any]]
    weight: float = 1.0
    required: bool = True
    bonus: Optional[float] = None
    penalty: Optional[float] = None


class SuccessCriteria(BaseModel):
    criteria: list[SuccessCriterion]
    aggregation: str = "all"
    minimum_weighted_score: Optional[float] = None


class CriterionResult(BaseModel):
    metric: str
    value: Optional[float]
    threshold: Union[float, dict[str, Any], list[Any]]
    comparison: ComparisonOperator
    met: bool
    weight: float = 1.0
    required: bool = True
    bonus: Optional[float] = None
    penalty: Optional[float] = None
    error: Optional[str] = None


class VerificationResult(BaseModel):
    contract_id: str
    success: bool
    metrics: dict[str, float]
    criterion_results: list[CriterionResult]
    weighted_score: Optional[float]
    bonus: float
    penalty: float
    governance_flags: list[str]
    verified_at: datetime


class LatencyExtractor:
    def supported_metrics(self) -> list[str]:
        return ["latency_ms", "time_to_first_byte", "processing_time"]

    async def extract(self, task_input: Any, task_output: Any, metadata: Any) -> dict[str, float]:
        return {
            "latency_ms": metadata.get("duration_ms", 0),
            "time_to_first_byte": metadata.get("ttfb_ms", 0),
            "processing_time": metadata.get("processing_ms", 0),
        }


class TextQualityExtractor:
    def __init__(self) -> None:
        from rouge_score import rouge_scorer

        self.rouge = rouge_scorer.RougeScorer(["rouge1", "rouge2", "rougeL"])

    def supported_metrics(self) -> list[str]:
        return ["bleu_score", "rouge1", "rouge2", "rougeL", "output_length", "word_count"]

    async def extract(self, task_input: Any, task_output: Any, metadata: Any) -> dict[str, float]:
        from sacrebleu import corpus_bleu

        output_text = task_output.get("text", "")
        reference = task_input.get("reference", "")
        metrics: dict[str, float] = {
            "output_length": len(output_text),
            "word_count": len(output_text.split()),
        }
        if reference:
            metrics["bleu_score"] = corpus_bleu([output_text], [[reference]]).score / 100
            rouge_scores = self.rouge.score(reference, output_text)
            metrics["rouge1"] = rouge_scores["rouge1"].fmeasure
            metrics["rouge2"] = rouge_scores["rouge2"].fmeasure
            metrics["rougeL"] = rouge_scores["rougeL"].fmeasure
        return metrics


class ClassificationExtractor:
    def supported_metrics(self) -> list[str]:
        return ["accuracy", "precision", "recall", "f1_score", "confidence", "num_predictions"]

    async def extract(self, task_input: Any, task_output: Any, metadata: Any) -> dict[str, float]:
        predictions = task_output.get("predictions", [])
        ground_truth = task_input.get("ground_truth", [])
        metrics = {"num_predictions": len(predictions), "confidence": task_output.get("confidence", 0)}
        if ground_truth and predictions:
            from sklearn.metrics import accuracy_score, f1_score, precision_score, recall_score

            pred_labels = [p["label"] for p in predictions]
            true_labels = [g["label"] for g in ground_truth]
            metrics["accuracy"] = accuracy_score(true_labels, pred_labels)
            metrics["precision"] = precision_score(true_labels, pred_labels, average="weighted")
            metrics["recall"] = recall_score(true_labels, pred_labels, average="weighted")
            metrics["f1_score"] = f1_score(true_labels, pred_labels, average="weighted")
        return metrics


class ContainsExtractor:
    def supported_metrics(self) -> list[str]:
        return ["contains_keywords", "matches_pattern", "matches_schema", "has_required_fields"]

    async def extract(self, task_input: Any, task_output: Any, metadata: Any) -> dict[str, float]:
        output_text = str(task_output.get("text", task_output))
        output_lower = output_text.lower()
        metrics: dict[str, float] = {}
        keywords = task_input.get("required_keywords", [])
        if keywords:
            found = sum(1 for k in keywords if k.lower() in output_lower)
            metrics["contains_keywords"] = found / len(keywords)
        schema = task_input.get("output_schema")
        if schema:
            import jsonschema

            try:
                jsonschema.validate(task_output, schema)
                metrics["matches_schema"] = 1.0
            except jsonschema.ValidationError:
                metrics["matches_schema"] = 0.0
        required_fields = task_input.get("required_fields", [])
        if required_fields:
            found = sum(1 for f in required_fields if f in task_output)
            metrics["has_required_fields"] = found / len(required_fields)
        return metrics


class GovernanceResult(BaseModel):
    valid: bool = True
    flags: list[str] = []


class Governance:
    async def validate_outcome(
        self, contract_id: str, claimed_metrics: Any, execution_context: Any
    ) -> GovernanceResult:
        return GovernanceResult()


class VerificationEngine:
    def __init__(self, extractors: dict[str, Any], governance: Governance) -> None:
        self.extractors = extractors
        self.governance = governance

    async def verify(
        self,
        contract_id: str,
        work_input: Any,
        work_output: Any,
        success_criteria: SuccessCriteria,
        execution_metadata: Any,
    ) -> VerificationResult:
        metrics = await self._extract_metrics(work_input, work_output, execution_metadata, success_criteria.criteria)
        criterion_results = []
        for criterion in success_criteria.criteria:
            criterion_results.append(self._evaluate_criterion(criterion, metrics))  # noqa: PERF401 - as printed
        success, weighted_score = self._aggregate_results(
            criterion_results, success_criteria.aggregation, success_criteria.minimum_weighted_score
        )
        governance_result = await self.governance.validate_outcome(
            contract_id=contract_id, claimed_metrics=metrics, execution_context=execution_metadata
        )
        bonus, penalty = self._calculate_incentives(criterion_results)
        return VerificationResult(
            contract_id=contract_id,
            success=success and governance_result.valid,
            metrics=metrics,
            criterion_results=criterion_results,
            weighted_score=weighted_score,
            bonus=bonus,
            penalty=penalty,
            governance_flags=governance_result.flags,
            verified_at=datetime.now(UTC),
        )

    async def _extract_metrics(
        self, task_input: Any, task_output: Any, metadata: Any, criteria: list[SuccessCriterion]
    ) -> dict[str, float]:
        required_metrics = {c.metric for c in criteria}
        extracted: dict[str, float] = {}
        for extractor in self.extractors.values():
            needed = required_metrics & set(extractor.supported_metrics())
            if needed:
                extracted.update(await extractor.extract(task_input, task_output, metadata))
        return extracted

    def _evaluate_criterion(self, criterion: SuccessCriterion, metrics: dict[str, float]) -> CriterionResult:
        value = metrics.get(criterion.metric)
        # mypy reads the printed models more strictly than pydantic does.
        threshold: Any = criterion.threshold
        if value is None:
            return CriterionResult(
                metric=criterion.metric,
                value=None,
                threshold=threshold,
                comparison=criterion.comparison,
                met=False,
                error="Metric not found",
            )
        met = self._compare(value, threshold, criterion.comparison)
        return CriterionResult(
            metric=criterion.metric,
            value=value,
            threshold=threshold,
            comparison=criterion.comparison,
            met=met,
            weight=criterion.weight,
            required=criterion.required,
            bonus=criterion.bonus if met else None,
            penalty=criterion.penalty if not met else None,
        )

    def _compare(self, value: float, threshold: Any, comparison: ComparisonOperator) -> bool:
        comparisons: dict[ComparisonOperator, Any] = {
            ComparisonOperator.GTE: lambda v, t: v >= t,
            ComparisonOperator.GT: lambda v, t: v > t,
            ComparisonOperator.LTE: lambda v, t: v <= t,
            ComparisonOperator.LT: lambda v, t: v < t,
            ComparisonOperator.EQ: lambda v, t: abs(v - t) < 0.0001,
            ComparisonOperator.NEQ: lambda v, t: abs(v - t) >= 0.0001,
            ComparisonOperator.IN_RANGE: lambda v, t: t["min"] <= v <= t["max"],
            ComparisonOperator.CONTAINS_ALL: lambda v, t: v >= 1.0,
            ComparisonOperator.CONTAINS_ANY: lambda v, t: v > 0,
        }
        return bool(comparisons[comparison](value, threshold))

    def _aggregate_results(
        self, results: list[CriterionResult], aggregation: str, min_weighted_score: Optional[float]
    ) -> tuple[bool, Optional[float]]:
        if aggregation == "all":
            success = all(r.met for r in results if r.error is None and results[results.index(r)].required)
            return success, None
        if aggregation == "any":
            return any(r.met for r in results if r.error is None), None
        if aggregation == "weighted":
            total_weight = sum(r.weight for r in results if r.error is None)
            weighted_sum = sum(r.weight * (1.0 if r.met else 0.0) for r in results if r.error is None)
            score = weighted_sum / total_weight if total_weight > 0 else 0
            return score >= (min_weighted_score or 0.5), score
        return False, None

    def _calculate_incentives(self, results: list[CriterionResult]) -> tuple[float, float]:
        bonus = sum(r.bonus or 0 for r in results if r.met and r.bonus)
        penalty = sum(r.penalty or 0 for r in results if not r.met and r.penalty)
        return bonus, penalty
