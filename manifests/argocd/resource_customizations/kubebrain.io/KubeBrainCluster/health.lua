-- The resource follows kstatus: conditions with observedGeneration, Reconciling and Stalled.
-- A rolling update is Progressing, not Degraded; what only a change of the spec can mend is Degraded.
local function judged(status, message)
  return { status = status, message = message or "" }
end

if obj.spec ~= nil and obj.spec.paused == true then
  return judged("Suspended", "spec.paused is true: nothing is changed")
end

local status = obj.status
if status == nil or status.conditions == nil then
  return judged("Progressing", "The operator has not reconciled the cluster yet")
end

-- Conditions of an older spec say nothing about this one.
if status.observedGeneration == nil or status.observedGeneration < obj.metadata.generation then
  return judged("Progressing", "The operator has not seen the newest spec yet")
end

local conditions = {}
for _, condition in ipairs(status.conditions) do
  conditions[condition.type] = condition
end

local function is(name, value)
  return conditions[name] ~= nil and conditions[name].status == value
end

if is("Stalled", "True") then
  return judged("Degraded", conditions.Stalled.message)
end
if is("Available", "False") and conditions.Available.reason == "Suspended" then
  return judged("Suspended", conditions.Available.message)
end
-- The copy of an etcd waits for a user, who stops the clients there first.
if is("Bootstrapped", "False") and conditions.Bootstrapped.reason == "Following" then
  return judged("Suspended", conditions.Bootstrapped.message)
end
if is("Progressing", "True") then
  return judged("Progressing", conditions.Progressing.message)
end
if is("Degraded", "True") then
  return judged("Degraded", conditions.Degraded.message)
end
if is("Ready", "True") then
  return judged("Healthy", conditions.Ready.message)
end
if conditions.Ready ~= nil then
  return judged("Progressing", conditions.Ready.message)
end
return judged("Progressing", "The operator has not judged the cluster yet")
