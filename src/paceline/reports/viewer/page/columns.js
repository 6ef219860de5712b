"use strict";
// The index as typed columns, one entry per completion; what a number is missing of is NaN.

function makeColumns(index) {
  const count = index.reward.length;
  const columns = {
    ...index,
    count,
    reward: numbers(index.reward),
    advantage: numbers(index.advantage),
    tokens: Int32Array.from(index.tokens),
    finish: Int16Array.from(index.finish),
    dropped: Int16Array.from(index.dropped),
    marks: Uint16Array.from(index.marks),
    functions: new Map(Object.entries(index.functions).map(([name, values]) => [name, numbers(values)])),
    part: new Int32Array(count),
    group: new Int32Array(count),
    groupStart: new Int32Array(index.group_size.length + 1),
    groupPart: new Int32Array(index.group_size.length),
    partGroup: [], // the first group of each part
    partRow: [], // the first completion of each part
    groupsOfTask: new Map(), // task -> groups, for comparing steps
  };
  let group = 0, row = 0;
  index.parts.forEach((part, number) => {
    columns.partGroup.push(group);
    columns.partRow.push(row);
    for (const end = group + part.groups; group < end; group++) {
      columns.groupPart[group] = number;
      columns.groupStart[group] = row;
      columns.part.fill(number, row, row + index.group_size[group]);
      columns.group.fill(group, row, row + index.group_size[group]);
      row += index.group_size[group];
      const task = index.group_task[group];
      if (!columns.groupsOfTask.has(task)) columns.groupsOfTask.set(task, []);
      columns.groupsOfTask.get(task).push(group);
    }
  });
  columns.groupStart[group] = row;
  columns.lowest = columns.reward.reduce((least, value) => (value < least ? value : least), Infinity);
  columns.highest = columns.reward.reduce((most, value) => (value > most ? value : most), -Infinity);
  return columns;
}

function numbers(values) {
  return Float64Array.from(values, (value) => (value === null ? NaN : value));
}

function partOf(columns, row) {
  return columns.parts[columns.part[row]];
}

function labelOf(columns, row) {
  return columns.labels[columns.group_task[columns.group[row]]];
}

function rulesOf(columns, row) {
  return columns.rules.filter((_, bit) => columns.marks[row] & (1 << bit));
}
