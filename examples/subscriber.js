// Print each complete window of a feed once: node subscriber.js BOOTSTRAP FEED [COUNT]
// Needs @platformatic/kafka (npm ci). Ends after COUNT windows; without it, never.

import { createHash, randomUUID } from 'node:crypto'
import { Consumer } from '@platformatic/kafka'

const MARKERS = 'hexveil.window.v1'
const TOPICS = ['hexveil.hexagon-speed.v1', 'hexveil.spatial-histogram.v1', MARKERS]

const [bootstrap, feed, count = Infinity] = process.argv.slice(2)
if (feed === undefined) {
  console.error('node subscriber.js BOOTSTRAP FEED [COUNT]')
  process.exit(2)
}

// A group of its own that commits nothing: each run begins with what retention has kept.
const consumer = new Consumer({ groupId: randomUUID(), clientId: 'subscriber', bootstrapBrokers: [bootstrap] })
const stream = await consumer.consume({ topics: TOPICS, mode: 'earliest', autocommit: false })

const messages = new Map() // window -> ce_id -> value: a repetition changes nothing
const markers = new Map()
const done = new Set()

for await (const record of stream) {
  const header = [...record.headers].find(([name]) => name.toString() === 'ce_id')
  const body = parsed(record.value)
  const start = body?.window?.start
  if (header === undefined || start === undefined) continue // not written by Hexveil
  if (body.feed !== feed || done.has(start)) continue
  if (!messages.has(start)) messages.set(start, new Map())
  if (record.topic === MARKERS) markers.set(start, body) // it may overtake the others: they come by other topics
  else messages.get(start).set(String(header[1]), record.value)
  if (!markers.has(start) || !complete(markers.get(start), messages.get(start))) continue
  take(markers.get(start), messages.get(start))
  messages.delete(start)
  done.add(start)
  if (done.size >= count) break
}
await consumer.close(true)

function parsed(value) {
  try {
    return JSON.parse(value)
  } catch {
    return undefined
  }
}

// Whether these are all messages that the marker speaks of, and the very bytes.
function complete(marker, values) {
  if (values.size !== marker.messages) return false
  const hash = createHash('sha256')
  for (const id of [...values.keys()].sort()) hash.update(values.get(id))
  return marker.digest === `sha256:${hash.digest('hex')}`
}

// Whatever you do with a window; here it is told.
function take(marker, values) {
  console.log(`${marker.feed} ${marker.window.start} ${values.size} messages`)
}
