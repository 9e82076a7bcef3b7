"""The report's script: the readout under the pointer and the filter of the viewer."""

JS = """
(function () {
  'use strict';
  var data = JSON.parse(document.getElementById('series').textContent);
  var readout = document.getElementById('readout');
  var rest = readout.textContent;

  function at(series, x) {            // newest point at or before x
    var low = 0, high = series.x.length;
    while (low < high) {
      var middle = (low + high) >> 1;
      if (series.x[middle] <= x) { low = middle + 1; } else { high = middle; }
    }
    return low ? series.y[low - 1] : null;
  }

  function show(x) {
    readout.textContent = '';
    function add(label, value) {
      var item = document.createElement('span'), strong = document.createElement('b');
      item.appendChild(document.createTextNode(label + ' '));
      strong.appendChild(document.createTextNode(value));
      item.appendChild(strong);
      readout.appendChild(item);
    }
    add('rollout', Math.round(x).toLocaleString('en'));
    data.series.forEach(function (series) {
      var value = at(series, x);
      if (value === null) { return; }
      add(series.name, series.percent ? (100 * value).toFixed(1) + ' %'
        : value.toFixed(series.digits));
    });
  }

  document.querySelectorAll('svg.chart').forEach(function (svg) {
    var cursor = svg.querySelector('.cursor');
    var left = +svg.dataset.left, right = +svg.dataset.right, end = +svg.dataset.end;
    svg.addEventListener('pointermove', function (event) {
      var box = svg.getBoundingClientRect();
      var place = (event.clientX - box.left) / box.width * svg.viewBox.baseVal.width;
      place = Math.max(left, Math.min(right, place));
      cursor.setAttribute('x1', place);
      cursor.setAttribute('x2', place);
      cursor.style.visibility = 'visible';
      show((place - left) / (right - left) * end);
    });
    svg.addEventListener('pointerleave', function () {
      cursor.style.visibility = 'hidden';
      readout.textContent = rest;
    });
  });

  var filters = document.querySelectorAll('.filters select');
  function filter() {
    document.querySelectorAll('.rollout').forEach(function (item) {
      item.hidden = Array.prototype.some.call(filters, function (select) {
        return select.value && item.dataset[select.name] !== select.value;
      });
    });
  }
  filters.forEach(function (select) { select.addEventListener('change', filter); });
}());
"""
